package keeper

import (
	"encoding/json"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/build"
	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/process"
	"skerry/keeper/internal/sudo"
)

// config is the body of PUT /v1/config.
type config struct {
	User      *string           `json:"user"`
	Cwd       string            `json:"cwd"`
	Env       map[string]string `json:"env"`
	Sudo      bool              `json:"sudo"`
	Life      *float64          `json:"life_s"`
	Hostname  *string           `json:"hostname"`
	OpenFiles uint32            `json:"open_files"`
	Journal   bounds            `json:"journal"`
	Resolver  string            `json:"resolver"` // address of the name server; "": none
	Pids      uint32            `json:"pids"`     // limit of the cgroup, which counts threads and the keeper's own; 0: unknown
}

// bounds limits the recorded output in bytes; 0 selects the default.
type bounds struct {
	Process int64 `json:"process"`
	Sandbox int64 `json:"sandbox"`
}

type account struct {
	Name string `json:"name"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Home string `json:"home"`
}

type greeting struct {
	Build     string   `json:"build"`
	Protocol  int      `json:"protocol"`
	Shell     string   `json:"shell,omitempty"`
	User      *account `json:"user,omitempty"`
	Uptime    float64  `json:"uptime_s"`
	Processes int      `json:"processes"`
}

func (c *config) user() string {
	if c.User == nil {
		return "root"
	}
	return *c.User
}

func (c *config) defaults() process.Defaults {
	return process.Defaults{User: c.user(), Cwd: c.Cwd, Env: c.Env, OpenFiles: c.OpenFiles, Processes: c.processes()}
}

// processes returns the process limit of one user. A Go program dies when it cannot create a thread, and this one is
// PID 1: a fork bomb must reach its own limit while the keeper (16 threads) and the launchers (5 each) still have
// capacity. The limit is at least two thirds of the total, because root's own count, including those threads, must stay
// below it before a launcher may fork for any user.
func (c *config) processes() uint32 {
	const reserve = 64
	return max(c.Pids-min(c.Pids, reserve), c.Pids/3*2)
}

// raises reports whether commands may have more than under an earlier configuration.
func (c *config) raises(earlier *config) bool {
	return c.OpenFiles > earlier.OpenFiles || c.processes() > earlier.processes()
}

// check returns the first problem of a configuration, or "".
func (c *config) check() string {
	if c.Cwd == "" {
		c.Cwd = "/"
	}
	if !strings.HasPrefix(c.Cwd, "/") || strings.Contains(c.Cwd, "\x00") {
		return "cwd: must be an absolute path"
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return "env: invalid name or value"
		}
	}
	if _, err := netip.ParseAddr(c.Resolver); c.Resolver != "" && err != nil {
		return "resolver: must be an IP address"
	}
	if c.Life != nil && !(*c.Life >= 0 && *c.Life < 1e9) {
		return "life_s: out of range"
	}
	if c.Journal.Process < 0 || c.Journal.Sandbox < 0 {
		return "journal: out of range"
	}
	return ""
}

// configure applies a configuration. The stored processes are restored with the first one, because the journal bounds
// come with it.
func (k *keeper) configure(c *httpwire.Conn, q *httpwire.Request) {
	next := &config{}
	if !decode(c, q, next) {
		return
	}
	if problem := next.check(); problem != "" {
		c.Fail(400, "bad_request", problem)
		return
	}
	user, err := accounts.Find(next.user())
	if err != nil {
		c.Fail(400, "unknown_user", "user "+strconv.Quote(next.user())+" not found in the sandbox")
		return
	}
	if next.Hostname != nil {
		_ = syscall.Sethostname([]byte(*next.Hostname)) // most runtimes forbid it: they have set the name themselves
	}
	_ = os.MkdirAll(next.Cwd, 0o755) // an image need not contain its working directory; if this fails, starting a command reports it
	writeResolvConf(next.Resolver)
	k.processes.Journals.SetBounds(next.Journal.Process, next.Journal.Sandbox)
	k.restore.Do(k.processes.Restore)
	k.mu.Lock()
	raised := k.config != nil && next.raises(k.config)
	k.config = next
	k.setLife(next.Life)
	k.mu.Unlock()
	if raised {
		k.pool.Renew()
	}
	if next.Sudo {
		err = k.sudo.Open(sudo.Rules{UID: user.UID, Env: next.Env, OpenFiles: next.OpenFiles, Processes: next.processes()})
	} else {
		k.sudo.Close()
	}
	if err != nil {
		c.Fail(500, "no_sudo", "cannot open the sudo socket: "+err.Error())
		return
	}
	g := k.greeting()
	g.Shell, g.User = process.Shell(), &account{user.Name, user.UID, user.GID, user.Home}
	c.JSON(200, g)
}

// setLife restarts the timer that ends the sandbox even without a server. k.mu is held.
func (k *keeper) setLife(seconds *float64) {
	if k.life != nil {
		k.life.Stop()
		k.life = nil
	}
	if seconds != nil && *seconds > 0 {
		k.life = time.AfterFunc(time.Duration(*seconds*float64(time.Second)), func() { k.quit <- 2 * time.Second })
	}
}

func (k *keeper) hello(c *httpwire.Conn, _ *httpwire.Request) { c.JSON(200, k.greeting()) }

func (k *keeper) greeting() greeting {
	return greeting{
		Build: build.ID, Protocol: build.Protocol, Uptime: time.Since(k.began).Seconds(), Processes: k.processes.Running(),
	}
}

func (k *keeper) current() *config {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.config
}

// decode reads a JSON body strictly. When it returns false, it has already responded.
func decode(c *httpwire.Conn, q *httpwire.Request, into any) bool {
	body, err := q.ReadAll()
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(body)))
		d.DisallowUnknownFields()
		if err = d.Decode(into); err == nil && d.More() {
			err = httpwire.ErrBody
		}
	}
	if err != nil {
		c.Fail(400, "bad_request", "body: "+err.Error())
		return false
	}
	return true
}
