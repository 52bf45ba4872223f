"""Fuzzing: cases without end, drawn at random, until the time is up; what fails is shrunk, reported and saved.

- `strategies`, `law_strategies`: what Hypothesis draws, for single runs and for laws. The test suite does too.
- `hunt`: one search with Hypothesis, for the smallest case that breaks something.
- `runs`: the invariants that a single run breaks; `law_searches`: the parts of the laws, in small doses.
- `bets`, `coin_bets`: tests of many draws that may be looked at any time, and their levels.
- `sources`: all of these, to be taken in turn; `campaign`: engines and sources in turn, until the time is up.
- `bug_report`: what was found, as a colleague would report it; `reproduction`: the same as a file that can be replayed.
- `case_files`: cases as JSON.
"""
