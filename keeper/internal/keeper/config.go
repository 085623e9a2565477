package keeper

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/build"
	"skerry/keeper/internal/process"
	"skerry/keeper/internal/sudo"
	"skerry/keeper/internal/wire"
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
	Resolver  string            `json:"resolver"` // asked for names; "": nobody
	Pids      uint32            `json:"pids"`     // the cgroup's limit, threads and our own included; 0: not known
}

// bounds is how many bytes of output are kept; 0 is the default.
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

// processes is what one user may have. A Go program ends when it can't make a thread, and this one is PID 1: a fork bomb
// has to meet its own limit while there is room left for the keeper (16 threads) and for launchers (5 each). Not less than
// two thirds: root's own count, those threads included, has to fit too before a launcher may fork for anybody.
func (c *config) processes() uint32 {
	const reserve = 64
	return max(c.Pids-min(c.Pids, reserve), c.Pids/3*2)
}

// raises says whether a command may have more than under an earlier configuration.
func (c *config) raises(earlier *config) bool {
	return c.OpenFiles > earlier.OpenFiles || c.processes() > earlier.processes()
}

func (c *config) check() string {
	if c.Cwd == "" {
		c.Cwd = "/"
	}
	if !strings.HasPrefix(c.Cwd, "/") || strings.Contains(c.Cwd, "\x00") {
		return "cwd: not an absolute path"
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return "env: a name or value can't be set"
		}
	}
	if _, err := netip.ParseAddr(c.Resolver); c.Resolver != "" && err != nil {
		return "resolver: not an address"
	}
	if c.Life != nil && !(*c.Life >= 0 && *c.Life < 1e9) {
		return "life_s: out of range"
	}
	if c.Journal.Process < 0 || c.Journal.Sandbox < 0 {
		return "journal: out of range"
	}
	return ""
}

func (k *keeper) configure(c *wire.Conn, q *wire.Request) {
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
		c.Fail(400, "unknown_user", "there is no user "+next.user()+" in the sandbox")
		return
	}
	if next.Hostname != nil {
		_ = syscall.Sethostname([]byte(*next.Hostname)) // not permitted in most walls: the runtime has set it
	}
	_ = os.MkdirAll(next.Cwd, 0o755) // an image need not have the directory that it names; a command says what is wrong
	pointResolver(next.Resolver)
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
		err = k.door.Open(sudo.Rules{UID: user.UID, Env: next.Env, OpenFiles: next.OpenFiles, Processes: next.processes()})
	} else {
		k.door.Close()
	}
	if err != nil {
		c.Fail(500, "no_sudo", "the sudo door can't be opened: "+err.Error())
		return
	}
	g := k.greet()
	g.Shell, g.User = process.Shell(), &account{user.Name, user.UID, user.GID, user.Home}
	c.JSON(200, g)
}

// setLife restarts the clock after which the keeper ends the sandbox even if no server lives to do it. k.mu is held.
func (k *keeper) setLife(seconds *float64) {
	if k.life != nil {
		k.life.Stop()
		k.life = nil
	}
	if seconds != nil && *seconds > 0 {
		k.life = time.AfterFunc(time.Duration(*seconds*float64(time.Second)), func() { k.quit <- 2 * time.Second })
	}
}

func (k *keeper) greet() greeting {
	return greeting{
		Build: build.ID, Protocol: build.Protocol, Uptime: time.Since(k.began).Seconds(), Processes: k.processes.Running(),
	}
}

func (k *keeper) current() *config {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.config
}

// decode reads a JSON body strictly; it has answered when it returns false.
func decode(c *wire.Conn, q *wire.Request, into any) bool {
	body, err := q.ReadAll()
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(body)))
		d.DisallowUnknownFields()
		if err = d.Decode(into); err == nil && d.More() {
			err = wire.ErrBody
		}
	}
	if err != nil {
		c.Fail(400, "bad_request", "body: "+err.Error())
		return false
	}
	return true
}
