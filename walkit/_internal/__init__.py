"""Helpers that every room may use; none of them knows a log.

- `arguments`: checks of arguments; each refusal is one OptionsError, "option=value: the rule"
- `arrow`: pyarrow, loaded on first use
- `html`: how objects draw themselves in notebooks; the one place that escapes text
- `locks`: marks of threads that have locks: such a thread waits for no other
- `plugins`: objects that other packages offer by name
- `progress`: progress bars
- `report`: timed phases, facts as HTML, and the base of reports that are a table
- `tables`: DataFrames that a notebook shows whole
- `text`: tables, counts and ranges for people
- `threads`: threads that can be waited for, and how to wake one without Python code under a lock
"""
