package tar

import (
	"reflect"
	"strings"
	"testing"
)

func decodeAll(b []byte) (all []Entry, err error) {
	var d Decoder
	for !d.Ended {
		e, n, err := d.Next(b)
		if err != nil {
			return all, err
		}
		if b = b[n:]; e != nil {
			all = append(all, *e)
			b = b[Padded(e.Size):]
		}
	}
	return all, nil
}

func TestEntriesRoundTrip(t *testing.T) {
	entries := []Entry{
		{Name: "d", Type: Directory, Mode: 0o755, Mtime: 1e18},
		{Name: strings.Repeat("long/", 400) + "\xff\n", Type: File, Mode: 0o600, Size: 700},
		{Name: "l", Type: Link, Mode: 0o777, Link: strings.Repeat("x", 300)},
		{Name: "h", Type: HardLink, Link: strings.Repeat("y/", 80) + "z"},
		{Name: strings.Repeat("n", fieldName), Type: File},
	}
	var b []byte
	for _, e := range entries {
		before := len(b)
		b = Append(b, &e)
		if len(b)-before > Room(&e) {
			t.Errorf("%.20q takes more than Room returned", e.Name)
		}
		b = append(b, make([]byte, Padded(e.Size))...)
	}
	got, err := decodeAll(End(b))
	if err != nil || !reflect.DeepEqual(got, entries) {
		t.Errorf("%v\n%+v", err, got)
	}
}

func TestSizesBeyondOctalRoundTrip(t *testing.T) {
	want := Entry{Name: "huge", Type: File, Size: 1 << 40}
	var d Decoder
	got, _, err := d.Next(Append(nil, &want))
	if err != nil || *got != want {
		t.Errorf("%v %+v", err, got)
	}
}

func TestIncompleteHeaderNeedsMore(t *testing.T) {
	b := Append(nil, &Entry{Name: strings.Repeat("n", 3000), Type: File})
	for cut := range len(b) {
		var d Decoder
		at := 0
		for {
			e, n, err := d.Next(b[at:cut])
			if err == ErrMore {
				break
			}
			if err != nil || e != nil {
				t.Fatalf("cut at %d: %v %+v", cut, err, e)
			}
			at += n
		}
	}
}

// No header may crash the first process of a sandbox.
func FuzzDecoder(f *testing.F) {
	f.Add(Append(nil, &Entry{Name: strings.Repeat("n", 300), Type: Link, Link: "x"}))
	f.Add(Append(nil, &Entry{Name: "x", Type: extended, Size: 20}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= Block { // with a wrong checksum, nearly every input would be rejected
			octal(b[148:155], checksum(b))
		}
		var d Decoder
		for range 10 {
			e, n, err := d.Next(b)
			if err != nil {
				return
			}
			if e != nil && (strings.HasPrefix(e.Name, "/") || strings.Contains("/"+e.Name+"/", "/../") || e.Size < 0) {
				t.Fatalf("%+v", e)
			}
			b = b[n:]
		}
	})
}
