package keeper

import "testing"

func TestResolvConfWithExternalServerIsKept(t *testing.T) {
	for text, want := range map[string]bool{
		"":                                     false,
		"nameserver 198.18.0.1\n":              true,
		"search a\n nameserver\t10.0.0.2":      true,
		"nameserver 127.0.0.53\noptions edns0": false,
		"nameserver ::1\nnameserver 9.9.9.9":   true,
		"nameserver 2001:db8::1":               false,
		"#nameserver 9.9.9.9\n;nameserver 9.9": false,
		"nameserver":                           false,
		"nameserver 0.0.0.0":                   false,
		"nameservers 9.9.9.9":                  false,
	} {
		if namesExternalServer([]byte(text)) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}
}
