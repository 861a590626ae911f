"""A `/retrieve` server over a corpus, for labs without one: lexical retrieval, loopback unless told otherwise.

POST /retrieve takes {"queries": [...]} or {"query": "..."}, with "topk" (default 3) and "return_scores" (default
false). GET /health tells what is searched and how, by name and by digest. Both payloads of the field are understood;
answers are those of Search-R1's server.
"""

from __future__ import annotations

from typing import Any

from envs.search_qa.retrieval import Hit, Retriever

MOST_QUERIES = 4096  # of one request
MOST_TOPK = 100


def build_app(retriever: Retriever, about: str, sha256: str) -> Any:
    """A FastAPI application. about, sha256: what is searched, and a digest of all that decides answers, for /health."""
    from fastapi import FastAPI, HTTPException
    from pydantic import BaseModel, Field

    class Request(BaseModel):
        queries: list[str] | None = Field(default=None, max_length=MOST_QUERIES)
        query: str | None = None
        topk: int = Field(default=3, ge=1, le=MOST_TOPK)
        return_scores: bool = False

    app = FastAPI(title="retriever")

    # Not `async`: FastAPI then runs it in a thread, and the search does not hold up other requests.
    def retrieve(request: Request) -> dict[str, Any]:
        queries = request.queries if request.queries is not None else [request.query] if request.query else None
        if queries is None:
            raise HTTPException(status_code=422, detail="give `queries` (a list) or `query` (one text)")
        found = retriever.search(queries, request.topk)
        return {"result": [[_entry(hit, request.return_scores) for hit in hits] for hits in found]}

    retrieve.__annotations__["request"] = Request  # the class is local: FastAPI cannot look its name up
    app.post("/retrieve")(retrieve)
    app.get("/health")(lambda: {"status": "ok", "corpus": about, "sha256": sha256})
    return app


def _entry(hit: Hit, scores: bool) -> dict[str, Any]:
    document = {"id": hit.passage.id, "contents": hit.passage.contents}
    return {"document": document, "score": hit.score} if scores else document


def serve(retriever: Retriever, about: str, sha256: str, host: str, port: int) -> None:
    """Until interrupted."""
    import uvicorn

    uvicorn.run(build_app(retriever, about, sha256), host=host, port=port, log_level="warning")
