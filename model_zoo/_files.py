"""Files of many types, made by rule from the zoo's words with the standard library and Pillow."""

import bz2
import configparser
import csv
import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import wave
import zipfile
from collections.abc import Callable, Mapping
from time import gmtime
from xml.etree import ElementTree

import numpy as np

from model_zoo import _text


def _words(seed: int, count: int) -> list[str]:
    texts = _text.sentences(450)
    rng = np.random.default_rng([seed, 7])
    words = " ".join(str(texts[i]) for i in rng.integers(0, 450, 1 + count // 6)).split()
    return [w.strip(".,;:!?\"'()").lower() or "word" for w in words][:count]


def _prose(seed: int) -> str:
    texts = _text.sentences(450)
    return "\n".join(str(texts[i]) for i in np.random.default_rng([seed, 8]).integers(0, 450, 12)) + "\n"


def _names(seed: int) -> list[str]:
    found = [w for w in _words(seed, 60) if w.isidentifier() and len(w) > 2]
    return [w + "_" + str(i) for i, w in enumerate(found[:8] + ["value"] * (8 - len(found[:8])))]


TEMPLATES: Mapping[str, str] = {
    "python": '''"""LINE."""

import os
import sys
from pathlib import Path


class AA:
    def __init__(self, BB: int = SEED) -> None:
        self.BB = BB

    def CC(self, path: Path) -> str:
        if not path.exists():
            raise FileNotFoundError(path)
        return path.read_text()[: self.BB]


def DD(argv: list[str]) -> int:
    for name in argv:
        print(AA(SEED).CC(Path(name)))
    return 0


if __name__ == "__main__":
    sys.exit(DD(sys.argv[1:]))
''',
    "c": """#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AA SEED

struct BB {
    int count;
    char *name;
    struct BB *next;
};

static int CC(struct BB *list, const char *name)
{
    for (; list != NULL; list = list->next)
        if (strcmp(list->name, name) == 0)
            return list->count;
    return -1;
}

int main(int argc, char **argv)
{
    struct BB *DD = malloc(sizeof *DD * AA);
    if (DD == NULL) {
        fprintf(stderr, "LINE\\n");
        return EXIT_FAILURE;
    }
    printf("%d\\n", CC(DD, argv[argc - 1]));
    free(DD);
    return EXIT_SUCCESS;
}
""",
    "java": """package org.example.CC;

import java.util.ArrayList;
import java.util.List;

public class AA {
    private final List<String> BB = new ArrayList<>();
    private static final int SIZE = SEED;

    public AA(String first) {
        this.BB.add(first);
    }

    @Override
    public String toString() {
        StringBuilder DD = new StringBuilder("LINE");
        for (String one : BB) {
            DD.append(one);
        }
        return DD.toString();
    }

    public static void main(String[] args) {
        System.out.println(new AA(args[0]));
    }
}
""",
    "javascript": """'use strict';

const fs = require('fs');
const path = require('path');

const AA = { limit: SEED, retries: 3 };

// LINE
function BB(CC, callback) {
  fs.readFile(path.join(__dirname, CC), 'utf8', (err, data) => {
    if (err) {
      return callback(err);
    }
    const lines = data.split('\\n').filter((line) => line.length > AA.limit);
    callback(null, lines);
  });
}

module.exports = { BB };

BB('DD.txt', (err, lines) => {
  console.log(err || lines);
});
""",
    "shell": """#!/bin/bash
set -euo pipefail

# LINE
AA="${1:-/tmp/BB}"
if [ ! -d "$AA" ]; then
    echo "no folder $AA" >&2
    exit 1
fi

for file in "$AA"/*.log; do
    [ -e "$file" ] || continue
    grep -c "CC" "$file" | awk '{ total += $1 } END { print total + SEED }'
done
""",
    "html": """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>AA</title>
</head>
<body>
<h1 id="BB">SEED</h1>
<p class="CC">LINE</p>
<ul><li><a href="/DD">DD</a></li></ul>
</body>
</html>
""",
    "css": """.AA {
  color: #SEED;
  margin: 0 4px;
  display: flex;
}

#BB > .CC:hover {
  background-color: rgba(0, 0, 0, 0.5);
  content: "LINE";
}

@media (max-width: 600px) {
  .DD {
    font-size: 14px;
  }
}
""",
    "markdown": """# AA

LINE

## Usage

```bash
pip install BB
```

- **CC**: LINE
- `DD`

[link](https://example.org/SEED)
""",
    "latex": """\\documentclass{article}
\\usepackage{amsmath}
\\begin{document}
\\section{AA BB}
LINE
\\begin{equation}
  x^{SEED} + y = \\frac{1}{2}
\\end{equation}
See \\cite{CC} and \\ref{DD}.
\\end{document}
""",
    "sql": """CREATE TABLE AA (
    id INTEGER PRIMARY KEY,
    BB VARCHAR(64) NOT NULL,
    CC INTEGER DEFAULT 0
);
INSERT INTO AA (id, BB, CC) VALUES (1, 'DD', SEED);
INSERT INTO AA (id, BB, CC) VALUES (2, 'LINE', SEED);
SELECT * FROM AA WHERE CC > SEED ORDER BY BB;
""",
}
"""Type → its text, with names, a number and a line of prose to be put in."""


def _written(kind: str) -> Callable[[int], str]:
    def made(seed: int) -> str:
        text = TEMPLATES[kind].replace("SEED", str(100000 + 7919 * seed % 900000))
        for place, name in zip(("AA", "BB", "CC", "DD"), _names(seed), strict=False):
            text = text.replace(place, name)
        return text.replace("LINE", _prose(seed).partition("\n")[0].replace("'", " ").replace('"', " "))

    return made


def _ini(seed: int) -> str:
    parser, out = configparser.ConfigParser(), io.StringIO()
    for name in _names(seed)[:4]:
        parser[name] = {key: str(seed + i) for i, key in enumerate(_names(seed + 1)[:4])}
    parser.write(out)
    return out.getvalue()


def _xml(seed: int) -> bytes:
    root = ElementTree.Element("catalog", version=str(seed))
    for name, line in zip(_names(seed), _prose(seed).splitlines(), strict=False):
        ElementTree.SubElement(root, "entry", id=name).text = line
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _csv(seed: int) -> str:
    out, rng = io.StringIO(), np.random.default_rng(seed)
    rows = csv.writer(out)
    rows.writerow(["id", *_names(seed)[:4]])
    rows.writerows([i, *(w for w in _words(seed + i, 2)), *rng.integers(0, 999, 2).tolist()] for i in range(40))
    return out.getvalue()


def _json(seed: int) -> str:
    rows = [
        {"id": i, "name": n, "tags": _words(seed + i, 3), "value": i * seed / 7} for i, n in enumerate(_names(seed))
    ]
    return json.dumps({"version": seed, "items": rows}, indent=2)


def _picture(form: str) -> Callable[[int], bytes]:
    def made(seed: int) -> bytes:
        from PIL import Image

        from model_zoo import _pictures

        out = io.BytesIO()
        dates = {"creationDate": gmtime(0), "modDate": gmtime(0)} if form == "PDF" else {}
        Image.fromarray(_pictures.lit(_pictures.dead_leaves(seed, 48, 64), seed)).save(out, form, **dates)
        return out.getvalue()

    return made


def _wav(seed: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        times = np.arange(4000) / 16000
        sound.writeframes((8000 * np.sin(2 * np.pi * (100 + seed) * times)).astype("<i2").tobytes())
    return out.getvalue()


def _zip(seed: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _names(seed):
            archive.writestr(zipfile.ZipInfo(f"{name}.txt"), _prose(seed))
    return out.getvalue()


def _tar(seed: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in _names(seed)[:3]:
            info = tarfile.TarInfo(f"{name}.txt")
            info.size = len(content := _prose(seed).encode())
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _sqlite(seed: int) -> bytes:
    with sqlite3.connect(":memory:") as database:
        database.executescript(_written("sql")(seed).rpartition("SELECT")[0])
        return bytes(database.serialize())


def _npy(seed: int) -> bytes:
    out = io.BytesIO()
    np.save(out, np.random.default_rng(seed).standard_normal((20, 16)))
    return out.getvalue()


def _npz(seed: int) -> bytes:
    out = io.BytesIO()
    np.savez(out, values=np.random.default_rng(seed).standard_normal((20, 16)))
    return out.getvalue()


def _in_utf8(make: Callable[[int], str]) -> Callable[[int], bytes]:
    return lambda seed: make(seed).encode()


MAKERS: Mapping[str, Callable[[int], bytes]] = {
    **{name: _in_utf8(_written(name)) for name in TEMPLATES},
    **{name: _in_utf8(make) for name, make in {"ini": _ini, "csv": _csv, "json": _json, "txt": _prose}.items()},
    "xml": _xml,
    **{
        name: _picture(form)
        for name, form in {"png": "PNG", "jpeg": "JPEG", "gif": "GIF", "bmp": "BMP", "tiff": "TIFF"}.items()
    },
    "webp": _picture("WEBP"),
    "pdf": _picture("PDF"),
    "wav": _wav,
    "zip": _zip,
    "tar": _tar,
    "sqlite": _sqlite,
    "npy": _npy,
    "npz": _npz,
    "gzip": lambda seed: gzip.compress(_prose(seed).encode(), mtime=0),
    "bzip": lambda seed: bz2.compress(_prose(seed).encode()),
    "xz": lambda seed: lzma.compress(_prose(seed).encode()),
}
"""Type as Magika calls it → what makes the file of a seed."""
