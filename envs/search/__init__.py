"""Full-text search over given texts, for every environment that has a search box or a retriever."""

INDEX_VERSION = 1  # index and ranking of given texts; raised whenever the same texts would be ranked otherwise
RANKERS_VERSION = 1  # how texts and queries are handed to other engines (rankers.py), and how their ties are broken
