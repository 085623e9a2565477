package httpwire

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

func request(text string) (*Request, error) {
	return readRequest(bufio.NewReaderSize(strings.NewReader(text), maxHead))
}

func TestSizedAndChunkedBodiesAreRead(t *testing.T) {
	for _, text := range []string{
		"PUT /v1/files?path=%2Fa%20b&x=1 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloPUT",
		"PUT /v1/files?path=%2Fa+b&x=1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n00000003\r\nllo\r\n0\r\n\r\n",
	} {
		q, err := request(text)
		if err != nil {
			t.Fatal(err)
		}
		body, err := q.ReadAll()
		if err != nil || string(body) != "hello" || q.Query.Get("path") != "/a b" || q.Path != "/v1/files" {
			t.Errorf("%q: %q, %v, %+v", text, body, err, q)
		}
	}
}

func TestMalformedRequestsAreRejected(t *testing.T) {
	for _, text := range []string{
		"GET / HTTP/1.0\r\n\r\n", "GET /\r\n\r\n", "GET x HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n",
		"GET / HTTP/1.1\r\nA: 1\r\na: 2\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
		"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET / HTTP/1.1\r\nA: " + strings.Repeat("x", maxHead) + "\r\n\r\n", "GET / HTTP/1.1\r\nA: 1\r\n",
		"GET /?a=%zz HTTP/1.1\r\n\r\n",
	} {
		if q, err := request(text); err == nil {
			t.Errorf("%.80q: %+v", text, q)
		}
	}
}

func TestTruncatedBodyIsAnError(t *testing.T) {
	for _, text := range []string{
		"PUT / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhel", "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
		"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
	} {
		q, err := request(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(q.Body); err == nil {
			t.Errorf("%q was accepted as complete", text)
		}
	}
}
