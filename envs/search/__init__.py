"""Full-text search over given texts, for every environment that has a search box or a retriever."""

INDEX_VERSION = 1  # index and ranking of given texts; raised whenever the same texts would be ranked otherwise
