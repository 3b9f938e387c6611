"""Sessions of pagebind-numpy.

They run in the current environment, which has the backend and the suite installed.
"""

from __future__ import annotations

import sys

import nox

nox.options.sessions = ["suite"]
here = nox.session(venv_backend="none")


@here
def suite(session: nox.Session) -> None:
    """Run the conformance suite and leave a report in `out`; arguments are pytest's own, as in `-- -k case_12`."""
    suite = ("pytest", "-q", "--pyargs", "pagebind_conformance", "--backend", "numpy", "--device", "cpu")
    session.run(sys.executable, "-m", *suite, "--report", "out/numpy.json", *session.posargs, external=True)


@here
def tests(session: nox.Session) -> None:
    """Run the tests: the suite, with few generated cases."""
    session.run(sys.executable, "-m", "pytest", "-q", *(session.posargs or ["tests"]), external=True)
