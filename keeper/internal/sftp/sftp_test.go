package sftp

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// packet builds a request.
func packet(kind byte, id uint32) output { return reply(kind, id) }

// exchange sends requests after INIT and returns the replies after VERSION, with the exit code.
func exchange(t *testing.T, requests ...[]byte) (answers []*input, code int) {
	t.Helper()
	sent := bytes.NewBuffer(output{0, 0, 0, 0, msgInit}.uint32(3).finish())
	for _, one := range requests {
		sent.Write(one)
	}
	var received bytes.Buffer
	code = serve(sent, &received)
	rest := received.Bytes()
	for len(rest) >= 4 {
		size := binary.BigEndian.Uint32(rest)
		answers = append(answers, &input{data: rest[4 : 4+size]})
		rest = rest[4+size:]
	}
	if len(answers) == 0 || answers[0].take(1)[0] != msgVersion {
		t.Fatalf("no version among %d answers", len(answers))
	}
	return answers[1:], code
}

func statusOf(t *testing.T, answer *input) uint32 {
	t.Helper()
	if kind := answer.take(1)[0]; kind != msgStatus {
		t.Fatalf("the answer has type %d", kind)
	}
	answer.uint32()
	return answer.uint32()
}

func TestFileIsWrittenAndReadAtAnyOffset(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	answers, code := exchange(t,
		packet(msgOpen, 1).text(name).uint32(openRead|openWrite|openCreate|openTruncate).uint32(hasMode).uint32(0o640).finish(),
		packet(msgWrite, 2).text("1").uint64(4).text("after").finish(),
		packet(msgWrite, 3).text("1").uint64(0).text("1234").finish(),
		packet(msgRead, 4).text("1").uint64(2).uint32(100).finish(),
		packet(msgRead, 5).text("1").uint64(9).uint32(100).finish(),
		packet(msgClose, 6).text("1").finish(),
	)
	if data, _ := os.ReadFile(name); code != 0 || string(data) != "1234after" {
		t.Fatalf("exit code %d, content %q", code, data)
	}
	read := answers[3]
	if read.take(1)[0] != msgData || read.uint32() != 4 || read.text() != "34after" {
		t.Fatal("the middle of the file was not read")
	}
	if got := statusOf(t, answers[4]); got != statusEOF {
		t.Fatalf("reading at the end gave status %d", got)
	}
	if info, _ := os.Stat(name); info.Mode().Perm() != 0o640 {
		t.Fatalf("mode %o", info.Mode().Perm())
	}
}

func TestRenameKeepsAnExistingTarget(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, name := range []string{from, to} {
		if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	answers, _ := exchange(t,
		packet(msgRename, 1).text(from).text(to).finish(),
		packet(msgExtended, 2).text("posix-rename@openssh.com").text(from).text(to).finish(),
	)
	if got := statusOf(t, answers[0]); got != statusFailure {
		t.Fatalf("rename over a file gave status %d", got)
	}
	if got := statusOf(t, answers[1]); got != statusOK {
		t.Fatalf("posix-rename gave status %d", got)
	}
	if data, _ := os.ReadFile(to); string(data) != from {
		t.Fatalf("the target has %q", data)
	}
}

func TestMalformedPacketsEndTheSessionOrFailAlone(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"empty":     {0, 0, 0, 0},
		"too large": {0xff, 0xff, 0xff, 0xff, msgStat},
		"cut":       {0, 0, 0, 9, msgStat, 0},
		"no id":     {0, 0, 0, 2, msgStat, 0},
	} {
		if _, code := exchange(t, bytes); code != 1 {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
	for name, one := range map[string]struct {
		request output
		status  uint32
	}{
		"path longer than the packet":  {packet(msgStat, 1).uint32(1 << 30), statusBadMessage},
		"path with NUL":                {packet(msgStat, 1).text("/etc\x00/passwd"), statusFailure},
		"unknown handle":               {packet(msgRead, 1).text("7").uint64(0).uint32(1), statusFailure},
		"file handle of another kind":  {packet(msgReaddir, 1).text("7"), statusFailure},
		"offset beyond any file":       {packet(msgWrite, 1).text("7").uint64(1 << 63).text("x"), statusFailure},
		"unknown request":              {packet(99, 1), statusUnsupported},
		"unknown extension":            {packet(msgExtended, 1).text("x@y").text("/"), statusUnsupported},
		"endless extended attributes":  {packet(msgMkdir, 1).text("/nope/x").uint32(hasMore).uint32(1 << 31), statusBadMessage},
		"directory below a file":       {packet(msgStat, 1).text("/etc/passwd/x"), statusNoFile},
		"attributes with a large size": {packet(msgSetstat, 1).text("/nope/x").uint32(hasSize).uint64(1 << 63), statusFailure},
	} {
		answers, code := exchange(t, one.request.finish())
		if got := statusOf(t, answers[0]); got != one.status || code != 0 {
			t.Errorf("%s: status %d, exit code %d", name, got, code)
		}
	}
}

func TestHandlesAreBounded(t *testing.T) {
	requests := make([][]byte, maxHandles+1)
	for i := range requests {
		requests[i] = packet(msgOpendir, uint32(i)).text("/").finish()
	}
	answers, _ := exchange(t, requests...)
	if kind := answers[maxHandles-1].take(1)[0]; kind != msgHandle {
		t.Fatalf("handle %d was not opened", maxHandles)
	}
	if got := statusOf(t, answers[maxHandles]); got != statusFailure {
		t.Fatalf("one handle more gave status %d", got)
	}
}

func TestModesAreShownAsLsDoes(t *testing.T) {
	for mode, want := range map[uint32]string{
		0o100644: "-rw-r--r--", 0o040755: "drwxr-xr-x", 0o120777: "lrwxrwxrwx", 0o104755: "-rwsr-xr-x", 0o102644: "-rw-r-Sr--",
		0o041777: "drwxrwxrwt",
	} {
		if got := modeText(mode); got != want {
			t.Errorf("%o is shown as %s", mode, got)
		}
	}
}
