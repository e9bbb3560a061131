"""The catalogue of recipes: schema, YAML files, status, lint, SQLite store, drilldown. Torch-free.

A recipe is a page, a runnable configuration and a set of sourced numbers in one. The files are the truth; the
store and the index are derived from them and can be thrown away at any time::

    data/*.yaml, <data_dir>/recipes/*.yaml, <data_dir>/confirmations/*.yaml
      └─ files.py ─> schema.Recipe ─> facts.py ─> store.py (SQLite) ─> index.py (columns) ─> drilldown.py
"""
