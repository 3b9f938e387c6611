"""What the operations cost: cases as data, peers beside them, a floor and a ceiling measured in the same run."""
