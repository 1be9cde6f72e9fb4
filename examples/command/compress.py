"""A program to tune: compresses a text and says how fast and how well. It knows no autotune.

python compress.py --level 6 --chunk-kib 64 --out metrics.json
"""

import argparse
import json
import os
import time
import zlib


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, default=6)
    parser.add_argument("--chunk-kib", type=int, default=64)
    parser.add_argument("--huffman-only", action="store_true")
    parser.add_argument("--out", required=True)
    asked = parser.parse_args()
    memory = int(os.environ.get("COMPRESS_MEMORY_LEVEL", "8"))
    strategy = zlib.Z_HUFFMAN_ONLY if asked.huffman_only else zlib.Z_DEFAULT_STRATEGY
    text = b"".join(
        b"line %d of a text that repeats itself, more or less\n" % n for n in range(40_000)
    )
    rates, size = [], 0
    for _ in range(3):
        packer = zlib.compressobj(asked.level, zlib.DEFLATED, 15, memory, strategy)
        start, size = time.perf_counter(), 0
        for at in range(0, len(text), asked.chunk_kib * 1024):
            size += len(packer.compress(text[at : at + asked.chunk_kib * 1024]))
        size += len(packer.flush())
        rates.append(len(text) / 1e6 / (time.perf_counter() - start))
    answer = {
        "metrics": {
            "megabytes_per_second": sorted(rates)[1],
            "compressed_fraction": size / len(text),
        },
        "samples": {"megabytes_per_second": rates},
    }
    with open(asked.out, "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
