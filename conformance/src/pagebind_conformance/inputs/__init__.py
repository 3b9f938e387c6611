"""The same inputs through several backends at once, compared bit for bit, and some of them with the oracle.

    python -m pagebind_conformance.inputs --backend cpu --backend cuda --backend triton --device cuda --json inputs.json

The suite holds one backend against the oracle. This draws very many more inputs than lists can be compared for, larger
ones among them, and asks whether backends ever differ. No verdict of the suite depends on it.
"""
