"""Make the compact WordNet of the package from WordNet 3.0's own files.

apt-get install wordnet-base
python scripts/build_wordnet.py /usr/share/wordnet src/lmlab/data/wordnet/wordnet.gz
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lmlab.data.wordnet import compact_format, princeton


def main() -> None:
    """Read the folder, write the file, say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where data.noun and its like are")
    parser.add_argument("out", type=Path, help="the compact file to write")
    arguments = parser.parse_args()
    synsets = princeton.read_synsets(arguments.folder)
    compact_format.write_compact(
        arguments.out, synsets, princeton.read_exceptions(arguments.folder)
    )
    print(f"{arguments.out}: {len(synsets):,} synsets, {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
