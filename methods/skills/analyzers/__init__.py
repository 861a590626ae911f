"""Analyzers other than the rules: language models behind an endpoint, the policy itself, recorded answers.

settings     AnalyzerConfig, and which values fit together       prompt       what a model is asked, in which words
answer       from a model's text to an Analysis, or why not      failures     what failed, and when that stops a run
ledger       what was spent                                      cache        answers on disk, shared by processes
recording    answers written to and read from JSONL              background   an event loop in a thread of its own
endpoint     one request: time limits, retries, size limit       remote       analyzer=openai
policy       analyzer=policy                                     replay       analyzer=replay

The registry, methods.skills.analyzer, imports them when they are asked for.
"""
