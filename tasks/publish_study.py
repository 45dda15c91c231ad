"""What a case study has shown, where people look."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from components import storage
from components.observability import study_page
from components.records import Artifact, RunFolder
from components.study import Result


@task(cache_policy=NO_CACHE)
def publish_study(folder: RunFolder, result: Result) -> list[Artifact]:
    """Publish the figures, the page and the gallery; verdict and link stand on the flow run."""
    urls = study_page.publish(folder, result)
    key = result.case.name.replace("_", "-")
    create_markdown_artifact(key=f"{key}-verdict", markdown=study_page.as_markdown(result))
    page = urls["page"]
    link = storage.local_path(page).absolute().as_uri() if storage.is_local(page) else page
    create_link_artifact(key=f"{key}-page", link=link, link_text=result.case.title)
    return [
        Artifact(name=name, url=url, digest=storage.sha256_of_bytes(storage.read_bytes(url)))
        for name, url in urls.items()
    ]
