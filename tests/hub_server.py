"""A hub on this machine, as far as huggingface_hub asks for it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


class Hub:
    """Repositories in memory, ``name -> path -> content``."""

    def __init__(self):
        self.repositories = {}
        self.asked = []  # method and path of every request
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def _answer(self, status, body=b"", **headers):
                if not isinstance(body, bytes):
                    body = json.dumps(body).encode()
                    headers["Content-Type"] = "application/json"
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def _body(self):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                path = unquote(urlsplit(self.path).path)
                hub.asked.append(f"{self.command} {path}")
                file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
                info = re.fullmatch(r"/api/models/([^/]+/[^/]+)(/.*)?", path)
                name = (file or info)[1] if file or info else None
                if name not in hub.repositories:
                    missing = {"X_Error_Code": "RepoNotFound"}
                    return self._answer(404, {"error": "no repository"}, **missing)
                content = hub.repositories[name]
                if file and file[2] not in ("main", COMMIT):
                    missing = {"X_Error_Code": "RevisionNotFound"}
                    return self._answer(404, {"error": "no revision"}, **missing)
                if file:
                    if file[3] not in content:
                        missing = {"X_Error_Code": "EntryNotFound"}
                        return self._answer(404, {"error": "no file"}, **missing)
                    digest = hashlib.sha1(content[file[3]]).hexdigest()
                    headers = {"ETag": f'"{digest}"', "X_Repo_Commit": COMMIT}
                    return self._answer(200, content[file[3]], **headers)
                if (info[2] or "").startswith("/tree"):
                    rows = [
                        {"type": "file", "path": p, "size": len(b), "oid": p}
                        for p, b in content.items()
                    ]
                    return self._answer(200, rows)
                if info[2] and info[2] not in ("/revision/main", f"/revision/{COMMIT}"):
                    missing = {"X_Error_Code": "RevisionNotFound"}
                    return self._answer(404, {"error": "no revision"}, **missing)
                siblings = [{"rfilename": p} for p in content]
                facts = {"id": name, "sha": COMMIT, "siblings": siblings}
                return self._answer(200, facts | {"private": False, "tags": []})

            def do_POST(self):
                path, body = urlsplit(self.path).path, self._body()
                hub.asked.append(f"POST {path}")
                if path == "/api/validate-yaml":
                    return self._answer(200, {"errors": [], "warnings": []})
                if path == "/api/repos/create":
                    given = json.loads(body)
                    name = f"{given.get('organization') or 'me'}/{given['name']}"
                    hub.repositories.setdefault(name, {})
                    return self._answer(200, {"url": f"{hub.address}/{name}"})
                found = re.fullmatch(r"/api/models/(.+?)/(preupload|commit)/.+", path)
                content = hub.repositories[found[1]]
                if found[2] == "preupload":
                    files = [
                        {**f, "uploadMode": "regular", "shouldIgnore": False}
                        for f in json.loads(body)["files"]
                    ]
                    return self._answer(200, {"files": files})
                for line in body.decode().splitlines():
                    entry = json.loads(line)
                    value = entry["value"]
                    if entry["key"] == "file":
                        content[value["path"]] = base64.b64decode(value["content"])
                    if entry["key"] == "deletedFile":
                        del content[value["path"]]
                url = f"{hub.address}/{found[1]}/commit/{COMMIT}"
                facts = {"commitUrl": url, "commitOid": COMMIT, "success": True}
                return self._answer(200, facts)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
