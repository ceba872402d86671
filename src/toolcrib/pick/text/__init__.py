"""What a request and a definition say: words, stems, parts of a request, queries."""
