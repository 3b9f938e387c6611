"""The suite: one file per operation, named as in the core, and one per contract that concerns them all.

`pytest --pyargs pagebind_conformance --backend NAME` collects every module here. Each names the `OPERATION` it holds,
or a `GROUP` where its tests are about several.
"""
