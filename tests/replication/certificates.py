"""Shared by the tests of TLS: an authority of the test's own, and the files of certificates that it issues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from walkit.replication import ClientTLS, ServerTLS

HOSTS = ("localhost", "127.0.0.1")


class Authority:
    """A certificate authority with its files in one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._ca = folder, trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)
        self._issued = 0

    def issue(self, *names: str, days: float = 1) -> tuple[Path, Path]:
        """Return the files (certificate, key) of a certificate for these names; it ends after so many days."""
        end = datetime.now(UTC) + timedelta(days=days)
        issued = self._ca.issue_cert(*(names or HOSTS), not_before=end - timedelta(days=400), not_after=end)
        self._issued += 1
        certificate = self._folder / f"{self._issued}.pem"
        key = self._folder / f"{self._issued}.key"
        issued.private_key_pem.write_to_path(key)
        for pem in issued.cert_chain_pems:
            pem.write_to_path(certificate, append=True)
        return certificate, key

    def server(self, *names: str, days: float = 1, client_ca: Path | None = None) -> ServerTLS:
        """The TLS of a primary with such a certificate."""
        certificate, key = self.issue(*names, days=days)
        return ServerTLS(certificate=certificate, key=key, client_ca=client_ca)

    def client(self, *, shows: tuple[Path, Path] | None = None) -> ClientTLS:
        """The TLS of a replica that trusts this authority, and shows a certificate where one is given."""
        certificate, key = shows or (None, None)
        return ClientTLS(ca=self.ca, certificate=certificate, key=key)
