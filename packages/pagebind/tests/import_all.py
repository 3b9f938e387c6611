"""Import every module of a distribution: `python import_all.py NAME`. For environments that hold nothing else."""

import pkgutil
import sys
from importlib import import_module
from importlib.metadata import files
from pathlib import Path


def main(distribution: str) -> None:
    if not files(distribution):
        raise SystemExit(f"{distribution} is not installed")
    package = import_module(distribution.replace("-", "_"))
    # Modules that need what only an extra or a device brings say so themselves when they are imported.
    left_out = []
    count = 0
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if "suite" in module.name.split("."):
            continue  # test modules: pytest imports them
        try:
            import_module(module.name)
            count += 1
        except SystemExit as error:
            left_out.append(f"{module.name}: {error}")
    print(f"{distribution}: {count} modules of {Path(package.__path__[0]).name} imported")
    for line in left_out:
        print("left out,", line)


if __name__ == "__main__":
    main(sys.argv[1])
