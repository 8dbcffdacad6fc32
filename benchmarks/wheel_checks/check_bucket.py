"""A signed release goes to a bucket, which the environment names with its server, and comes back."""

import os

import check_release

if __name__ == "__main__":
    check_release.main(f"{os.environ['BUCKET']}/{os.environ['PREFIX']}")
