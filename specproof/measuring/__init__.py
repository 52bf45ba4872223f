"""Measure one pair: what its drafter's proposals are worth, position by position, and what a defect does to that.

`turns` runs an engine and keeps what the figures need; `figures` and `ordering` compute, and know no engine; `report`,
`picture` and `command` show.
"""
