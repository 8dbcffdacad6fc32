"""What `make docs` runs can be imported; the site itself is built from the checkout."""

import mkdocs
import mkdocstrings

if __name__ == "__main__":
    print(mkdocs.__version__, mkdocstrings.__name__)
