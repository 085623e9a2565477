package ports

import (
	"strings"
	"testing"
)

func TestListenerIsParsedFromKernelTable(t *testing.T) {
	lines := map[string]string{
		"   0: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1": "127.0.0.2",
		"   1: 0A00000A:1F90 00000000:0000 0A":                                                 "10.0.0.10",
		"   2: B80D0120000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A": "2001:db8::1",
		"   3: 0000000000000000FFFF00000300007F:1F90 00000000000000000000000000000000:0000 0A": "127.0.0.3",
		"   4: 0200007F:1F91 00000000:0000 0A":                                                 "",
		"   5: 0200007F:1F90 00000000:0000 01":                                                 "",
		"   6: 0100007F:1F90 00000000:0000 0A":                                                 "",
		"   7: 00000000:1F90 00000000:0000 0A":                                                 "",
		"   8: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A": "",
		"  sl  local_address rem_address   st":                                                 "",
		"   9: 02:1F90 0 0A":                                                                   "",
		"   9: zz:1F90 0 0A":                                                                   "",
		"   9: 0200007F:FFFFF 0 0A":                                                            "",
		"":                                                                                     "",
	}
	for line, want := range lines {
		got, ok := listener(line, 8080)
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%q: %v, %v", line, got, ok)
		}
	}
}

func TestStatusLineIsParsedStrictly(t *testing.T) {
	for line, want := range map[string]int{
		"HTTP/1.1 200 OK\r\n": 200, "HTTP/1.0 404 Not Found\n": 404, "HTTP/1.1 503\r\n": 503, "HTTP/1.1 99 \r\n": 0,
		"HTTP/1.1 2000 \r\n": 0, "HTTP/1.1 600 x\r\n": 0, "HTTP/2 200 x\r\n\r\n": 0, "SSH-2.0-OpenSSH\r\n": 0, "": 0,
		"HTTP/1.1 2x0 OK\r\n": 0, "HTTP/1.1  200 OK\r\n": 0,
	} {
		if got, err := status([]byte(line)); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v", line, got, err)
		}
	}
}

func TestPathMustBeOnePrintableWord(t *testing.T) {
	for path, want := range map[string]bool{
		"/": true, "/a?b=c#d": true, "": false, "a": false, "/a b": false, "/a\r\nX: y": false, "/\x00": false, "/é": false,
		"/" + strings.Repeat("x", 2047): true, "/" + strings.Repeat("x", 2048): false, "/\x7f": false,
	} {
		if ValidPath(path) != want {
			t.Errorf("%.20q: not %v", path, want)
		}
	}
}
