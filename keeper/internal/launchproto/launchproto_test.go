package launchproto

import (
	"bytes"
	"reflect"
	"testing"
)

func TestRequestRoundTrip(t *testing.T) {
	want := &Request{
		Kind: Start, Job: 7, Signal: 9, UID: 1000, GID: 1001, OpenFiles: 64, Terminal: 1, Groups: []uint32{1, 2}, Dir: "/w", Path: "/bin",
		User: "ann", Argv: []string{"a", "", "\xff\xfe"}, Env: []string{"A=b"},
	}
	got, err := Read(bytes.NewReader(want.Encode()), MaxRequest)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestEventRoundTrip(t *testing.T) {
	want := Event{Kind: Exited, Job: 3, Value: 9, CPU: 1 << 40, MaxRSS: 1 << 50}
	got, err := ReadEvent(bytes.NewReader(want.Encode()))
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add((&Request{Kind: Start, Argv: []string{"x"}}).Encode()[4:])
	f.Add([]byte("\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := Decode(data); err == nil && !bytes.Equal(r.Encode()[4:], data) {
			t.Errorf("%q decodes to a request that encodes differently", data)
		}
	})
}
