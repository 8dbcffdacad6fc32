"""A signed release goes to an S3 server, which the environment names, and comes back."""

import os

import check_release

if __name__ == "__main__":
    check_release.main("s3://releases/" + os.environ["PREFIX"])
