"""Search-QA: questions answered with a search engine over Wikipedia passages."""
