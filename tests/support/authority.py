"""Certificates of tests, made with openssl."""

import secrets
import subprocess
import threading
import time

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
CONFIGURATION = """[ca]
default_ca = d
[d]
database = index.txt
new_certs_dir = .
serial = serial
default_md = sha256
policy = p
unique_subject = no
[p]
commonName = supplied
"""


def _time(days):
    return time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + days * 86400))


class Authority:
    """Signs certificates. `env`: of what makes them. Thread-safe."""

    def __init__(self, folder, env=None):
        self._folder, self._env = folder, env
        self._lock = threading.Lock()
        folder.mkdir(exist_ok=True)
        self._openssl(
            "req", "-x509", *CURVE, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca"
        )

    def make(self, names, uris=(), days=2, common_name="c", begins=None):
        """The data of a Secret: a certificate with these names and no others. The files stay in
        the folder until the next one is made. `days`: until its end. `begins`: days until its
        beginning, if it is not now."""
        texts = [*(f"DNS:{name}" for name in names), *(f"URI:{uri}" for uri in uris)]
        subject = "/CN=" + common_name.replace("/", "\\/")
        signed = ("-in", "tls.csr", "-out", "tls.crt")
        with self._lock:
            extension = f"subjectAltName={','.join(texts)}\n" if texts else ""
            (self._folder / "names").write_text(extension)
            self._openssl("req", *CURVE, "-keyout", "tls.key", "-out", "tls.csr", "-subj", subject)
            if begins is None:
                self._openssl(
                    *("x509", "-req", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
                    *(*signed, "-days", str(days), "-extfile", "names"),
                )
            else:
                (self._folder / "ca.cnf").write_text(CONFIGURATION, encoding="ascii")
                (self._folder / "index.txt").write_text("", encoding="ascii")
                (self._folder / "serial").write_text(secrets.token_hex(16), encoding="ascii")
                self._openssl(
                    *("ca", "-batch", "-notext", "-config", "ca.cnf"),
                    *("-cert", "ca.crt", "-keyfile", "ca.key", *signed, "-extfile", "names"),
                    *("-startdate", _time(begins), "-enddate", _time(days)),
                )
            files = ["ca.crt", "tls.crt", "tls.key"]
            return {f: (self._folder / f).read_text(encoding="ascii") for f in files}

    def _openssl(self, *words):
        subprocess.run(
            ["openssl", *words], cwd=self._folder, env=self._env, check=True, capture_output=True
        )
