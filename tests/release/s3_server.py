"""A real S3 server (moto's) over HTTP, in this process, that can be told to fail."""

import threading

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class Silent(WSGIRequestHandler):
    def log_request(self, *_):
        """Say nothing: a test makes hundreds."""


class S3Server:
    """``broken`` says how many of the next uploads it answers with 500, ``cut`` how many downloads it breaks off."""

    def __init__(self):
        self.app, self.broken, self.cut, self.lock = (
            DomainDispatcherApplication(create_backend_app),
            0,
            0,
            threading.Lock(),
        )
        self.requests = []
        self.http = make_server("127.0.0.1", 0, self, threaded=True, request_handler=Silent)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self.lock:
            self.requests.append((method, path))
            fails = self.broken > 0 and method == "PUT" and ("/releases/" in path or "/store/content/" in path)
            cuts = self.cut > 0 and method == "GET" and "/store/content/" in path
            self.broken -= fails
            self.cut -= cuts
        if fails:
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"broken"]
        answer = self.app(environ, start_response)
        if cuts:
            whole = b"".join(answer)
            return [whole[: len(whole) // 2]]  # less than its Content-Length, and the connection closes
        return answer
