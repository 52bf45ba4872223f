"""Fuzzing: cases without end, drawn at random, until the time is up; what fails is shrunk, reported and saved.

- `strategies`: what Hypothesis draws. The test suite draws from them too.
- `hunt`: one search with Hypothesis, for the smallest case that breaks something.
- `runs` and `bets`: what is looked for: a broken invariant of a single run, or another law of the output.
- `campaign`: engines and searches in turn, until the time is up.
- `bug_report`: what was found, as a colleague would report it; `reproduction`: the same as a file that can be replayed.
- `case_files`: cases as JSON.
"""
