"""`nki.compiler`: nothing is compiled here."""
