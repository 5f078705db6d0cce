package compose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/deploy/local"
)

// Part is one container of the demo.
type Part struct {
	Name     string `json:"name"` // the service
	Alive    bool   `json:"alive"`
	Restarts int    `json:"restarts"`
	started  string
	id       string
}

// Parts lists the containers that should run: one-shot ones that ended well are
// left out.
func Parts(ctx context.Context, s *local.State) ([]Part, error) {
	all, err := containers(ctx, labelProject+"="+s.Project)
	if err != nil {
		return nil, err
	}
	var out []Part
	for i := range all {
		c := &all[i]
		if c.State.Status == "exited" && c.State.ExitCode == 0 && oneShot(c.service()) {
			continue
		}
		out = append(out, Part{Name: c.service(), Alive: c.State.Running, Restarts: c.RestartCount, started: c.State.StartedAt, id: c.ID})
	}
	return out, nil
}

// Memory measures the containers that should run, against their limits.
func Memory(ctx context.Context, s *local.State) ([]local.Part, error) {
	parts, err := Parts(ctx, s)
	if err != nil {
		return nil, err
	}
	e, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]local.Part, len(parts))
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range parts {
		out[i] = local.Part{Name: p.Name, Alive: p.Alive, Started: p.started}
		group.Go(func() error {
			var now stats
			if err := e.get(ctx, "/containers/"+p.id+"/stats?stream=false&one-shot=true", &now); err != nil && !errors.Is(err, errGone) {
				return err
			}
			out[i].Memory, out[i].Limit = now.Memory.used(), now.Memory.Limit
			return nil
		})
	}
	return out, group.Wait()
}

// stats is what the engine counts of a container.
type stats struct {
	Read time.Time
	CPU  struct {
		Usage struct {
			Total int64 `json:"total_usage"`
		} `json:"cpu_usage"`
	} `json:"cpu_stats"`
	Memory memory `json:"memory_stats"`
}

type memory struct {
	Usage, Limit int64
	Stats        map[string]int64
}

// used leaves out the files' pages that the kernel would drop first, as the docker
// command does.
func (m memory) used() int64 {
	for _, name := range []string{"inactive_file", "total_inactive_file"} { // cgroup 2, and 1
		if n, ok := m.Stats[name]; ok {
			return m.Usage - n
		}
	}
	return m.Usage
}

func oneShot(service string) bool {
	return service == "seed" || strings.HasSuffix(service, "-keys") || strings.HasSuffix(service, "-migrate")
}

// Usage measures the containers for a while: their CPU time as the engine counts
// it, health checks included, and their processes' memory.
func Usage(ctx context.Context, parts []Part, d time.Duration) (local.Usage, error) {
	e, err := connect(ctx)
	if err != nil {
		return local.Usage{Note: "unknown: " + err.Error()}, nil
	}
	before, err := e.spent(ctx, parts)
	if err != nil {
		return local.Usage{}, err
	}
	select {
	case <-ctx.Done():
		return local.Usage{}, ctx.Err()
	case <-time.After(d):
	}
	after, err := e.spent(ctx, parts)
	if err != nil {
		return local.Usage{}, err
	}
	var cores, seconds float64
	for id, to := range after {
		if from, ok := before[id]; ok {
			took := to.at.Sub(from.at).Seconds()
			cores += (to.cpu - from.cpu).Seconds() / took
			seconds = max(seconds, took)
		}
	}
	u := local.Usage{Seconds: seconds, Cores: &cores}
	pids, err := e.pids(ctx, parts)
	if err != nil {
		return local.Usage{}, err
	}
	pss, err := local.PSS(pids)
	if err != nil || pss == 0 {
		u.Note = "memory is unknown: the containers' processes can't be read from here"
		return u, nil
	}
	u.PSS = &pss
	return u, nil
}

// engine is the engine's own interface: the docker command has no running totals.
type engine struct{ http *http.Client }

func connect(ctx context.Context) (*engine, error) {
	host := os.Getenv("DOCKER_HOST")
	if host == "" {
		var err error
		if host, err = docker(ctx, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"); err != nil {
			return nil, err
		}
	}
	socket, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return nil, fmt.Errorf("the engine is at %s, not at a socket of this machine", host)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &engine{http: &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: 10 * time.Second}}, nil
}

var errGone = errors.New("no such container")

func (e *engine) get(ctx context.Context, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return err
	}
	res, err := e.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(res.Body).Decode(out)
	case http.StatusNotFound, http.StatusConflict:
		return errGone
	}
	return fmt.Errorf("the engine says %s to %s", res.Status, path)
}

// reading is the CPU time of one container until a moment.
type reading struct {
	at  time.Time
	cpu time.Duration
}

// spent reads all containers at the same time: an engine takes a second for each.
func (e *engine) spent(ctx context.Context, parts []Part) (map[string]reading, error) {
	var mu sync.Mutex
	out := map[string]reading{}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range parts {
		group.Go(func() error {
			var now stats
			err := e.get(ctx, "/containers/"+p.id+"/stats?stream=false&one-shot=true", &now)
			if errors.Is(err, errGone) || err == nil && now.Read.IsZero() {
				return nil // it doesn't run
			}
			mu.Lock()
			defer mu.Unlock()
			out[p.id] = reading{at: now.Read, cpu: time.Duration(now.CPU.Usage.Total)}
			return err
		})
	}
	return out, group.Wait()
}

// pids are the processes of all containers as this machine knows them.
func (e *engine) pids(ctx context.Context, parts []Part) ([]int, error) {
	var out []int
	for _, p := range parts {
		var top struct{ Processes [][]string }
		err := e.get(ctx, "/containers/"+p.id+"/top?ps_args=-eo%20pid", &top)
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, line := range top.Processes {
			if pid, err := strconv.Atoi(line[0]); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out, nil
}
