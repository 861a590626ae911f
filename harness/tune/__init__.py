"""`sweep=tune`: a search for the settings of a method, by Optuna, on the panel `validation` and on no other.

space       what is searched                       objectives  what a trial is worth, read from its runs
searches    one search per row, place and backbone  study      Optuna's side: ask, tell, share, take over
trials      from parameters to cells of the plan   loop        who runs when, pruning, the end of a trial
results     tune.csv, tune.md, trials.jsonl        actions     do=run | plan | status | tables
"""
