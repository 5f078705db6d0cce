package compose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/cellmart/deploy/local"
)

const root = "../.."

// The cells' files differ in the cell's name, number and ports only.
func TestCellFilesAreAlike(t *testing.T) {
	t.Parallel()
	first, err := os.ReadFile("c1.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for k := 2; k <= 4; k++ {
		have, err := os.ReadFile(fmt.Sprintf("c%d.yaml", k))
		if err != nil {
			t.Fatal(err)
		}
		if want := cellFile(first, k); !bytes.Equal(have, want) {
			t.Errorf("c%d.yaml isn't c1.yaml with another number; it should be:\n%s", k, want)
		}
	}
}

// model is what Compose makes of the files, as far as the rules go.
type model struct {
	Services map[string]service
	Networks map[string]struct{ Internal bool }
}

type service struct {
	ContainerName string `json:"container_name"`
	NetworkMode   string `json:"network_mode"`
	Image         string
	User          string
	Privileged    bool
	ReadOnly      bool     `json:"read_only"`
	CapDrop       []string `json:"cap_drop"`
	CapAdd        []string `json:"cap_add"`
	SecurityOpt   []string `json:"security_opt"`
	MemLimit      string   `json:"mem_limit"`
	Command       []string
	Environment   map[string]string
	Networks      map[string]json.RawMessage
	Ports         []struct {
		HostIP string `json:"host_ip"`
	}
	Healthcheck struct{ Interval string }
	DependsOn   map[string]struct{ Condition string } `json:"depends_on"`
}

// violations gives what a model does against the rules of this package.
func violations(m model) []string {
	var out []string
	for name, s := range m.Services {
		bad := func(ok bool, format string, args ...any) {
			if !ok {
				out = append(out, name+": "+fmt.Sprintf(format, args...))
			}
		}
		bad(s.ContainerName == "", "container_name keeps two demos from one machine")
		bad(s.NetworkMode == "" && !s.Privileged, "shares the machine's network, or is privileged")
		bad(s.ReadOnly, "its root can be written")
		bad(slices.Equal(s.CapDrop, []string{"ALL"}) && len(s.CapAdd) == 0, "has capabilities")
		bad(slices.Contains(s.SecurityOpt, "no-new-privileges:true"), "may gain privileges")
		bad(s.User != "" && s.User != "root" && !strings.HasPrefix(s.User, "0"), "runs as root")
		bad(s.MemLimit != "" && s.MemLimit != "0", "has no memory limit")
		if strings.HasPrefix(s.Image, "cellmart:") && !oneShot(name) {
			bad(s.Environment["GOMEMLIMIT"] != "", "has no GOMEMLIMIT")
		}
		for _, p := range s.Ports {
			bad(p.HostIP == "127.0.0.1", "publishes a port on %q", p.HostIP)
		}
		_, on := m.Services[name].Networks["backbone"]
		bad(!on || name == "edge" || strings.HasSuffix(name, "-agent"), "is on the backbone")
		bad(len(s.Networks) == 1 || on && len(s.Networks) == 2, "is on %d networks", len(s.Networks))
		zone, _, _ := strings.Cut(name, "-")
		for network := range s.Networks {
			bad(network == "backbone" || network == zone || network == "people" && (zone == "edge" || zone == "seed"), "is on the network %s", network)
		}
		bad(s.Healthcheck.Interval != "" || oneShot(name), "has no health check")
		bad(!strings.HasSuffix(s.Healthcheck.Interval, "s") || strings.Contains(s.Healthcheck.Interval, "m"), "checks its health every %s", s.Healthcheck.Interval)
		for on, how := range s.DependsOn {
			bad(oneShot(on) && how.Condition == "service_completed_successfully", "waits for %s: only one-shot steps are waited for", on)
		}
	}
	if !m.Networks["backbone"].Internal {
		out = append(out, "the backbone leads out of the machine")
	}
	slices.Sort(out)
	return out
}

// load has Compose read the files, or skips where it can't.
func load(t *testing.T, args ...string) model {
	t.Helper()
	if err := exec.Command("docker", "compose", "version").Run(); err != nil {
		t.Skip("SKIPPED: docker compose isn't installed")
	}
	cmd := exec.Command("docker", append(append([]string{"compose"}, args...), "--profile", "*", "config", "--format", "json")...)
	cmd.Dir = root
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("docker compose %v: %v: %s", args, err, &complaint)
	}
	var m model
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestFilesKeepTheRules(t *testing.T) {
	t.Parallel()
	six := Options{Root: t.TempDir(), Cells: 6, PortBase: 20000}
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"deploy", "compose.yaml"} {
		if err := os.Symlink(filepath.Join(abs, dir), filepath.Join(six.Root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	generated, err := six.write()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name           string
		args           []string
		services, cell int
	}{
		{"compose.yaml", nil, 4*7 + 14, 7},
		{"compose.split.yaml", []string{"-f", "compose.yaml", "-f", "compose.split.yaml"}, 4*12 + 14, 12},
		{"six cells", generated, 6*7 + 14, 7},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := load(t, tc.args...)
			for _, v := range violations(m) {
				t.Error(v)
			}
			if len(m.Services) != tc.services {
				t.Errorf("%d services, want %d", len(m.Services), tc.services)
			}
			n := 0
			for name := range m.Services {
				if strings.HasPrefix(name, "c2-") {
					n++
				}
			}
			if n != tc.cell {
				t.Errorf("c2 has %d services, want %d", n, tc.cell)
			}
		})
	}
}

// Each planted violation is found.
func TestRulesFindPlantedOnes(t *testing.T) {
	t.Parallel()
	good := func() service {
		return service{
			Image: "cellmart:dev", User: "65532:65532", ReadOnly: true, CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges:true"},
			MemLimit: "1", Environment: map[string]string{"GOMEMLIMIT": "1"}, Networks: map[string]json.RawMessage{"c1": nil},
			Healthcheck: struct{ Interval string }{"1m0s"},
		}
	}
	for _, tc := range []struct {
		plant func(*service)
		want  string
	}{
		{func(*service) {}, ""},
		{func(s *service) { s.ContainerName = "x" }, "container_name"},
		{func(s *service) { s.ReadOnly = false }, "can be written"},
		{func(s *service) { s.CapDrop = nil }, "capabilities"},
		{func(s *service) { s.CapAdd = []string{"NET_ADMIN"} }, "capabilities"},
		{func(s *service) { s.SecurityOpt = nil }, "privileges"},
		{func(s *service) { s.User = "" }, "root"},
		{func(s *service) { s.MemLimit = "" }, "memory limit"},
		{func(s *service) { s.Environment = nil }, "GOMEMLIMIT"},
		{func(s *service) {
			s.Ports = []struct {
				HostIP string `json:"host_ip"`
			}{{""}}
		}, "publishes"},
		{func(s *service) { s.Networks["backbone"] = nil }, "backbone"},
		{func(s *service) { s.Networks["c2"] = nil }, "network c2"},
		{func(s *service) { s.Healthcheck.Interval = "10s" }, "health every 10s"},
		{func(s *service) { s.NetworkMode = "host" }, "machine's network"},
		{func(s *service) {
			s.DependsOn = map[string]struct{ Condition string }{"c1-postgres": {"service_healthy"}}
		}, "waits for"},
	} {
		s := good()
		tc.plant(&s)
		m := model{Services: map[string]service{"c1-order": s}, Networks: map[string]struct{ Internal bool }{"backbone": {true}}}
		got := strings.Join(violations(m), "; ")
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("found %q, want %q", got, tc.want)
		}
	}
}

// Local processes are held against the limits that containers have.
func TestLimitsAreTheSameInBothWays(t *testing.T) {
	t.Parallel()
	m := load(t, "-f", "compose.yaml", "-f", "compose.split.yaml")
	seen := 0
	for name, s := range m.Services {
		if oneShot(name) || strings.HasSuffix(name, "-2") {
			continue
		}
		seen++
		if want := fmt.Sprint(local.Limit(strings.Replace(name, "-", "/", 1))); s.MemLimit != want {
			t.Errorf("%s has mem_limit %s, the local way %s", name, s.MemLimit, want)
		}
	}
	if seen < 40 {
		t.Errorf("only %d services were compared", seen)
	}
}

func TestUsedMemory(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		m    memory
		want int64
	}{
		{memory{Usage: 100, Stats: map[string]int64{"inactive_file": 30, "anon": 50}}, 70},
		{memory{Usage: 100, Stats: map[string]int64{"total_inactive_file": 40}}, 60},
		{memory{Usage: 100}, 100},
	} {
		if got := tc.m.used(); got != tc.want {
			t.Errorf("%+v uses %d, want %d", tc.m, got, tc.want)
		}
	}
}

func TestBorder(t *testing.T) {
	t.Parallel()
	all := func(extra map[string]string) (out []container) {
		on := map[string]string{
			"c1-gateway": "c1", "c1-redis": "c1", "c1-agent": "c1 backbone", "c3-redis": "c3", "global-agent": "global backbone",
			"edge": "people backbone", "seed": "people",
		}
		for service, networks := range extra {
			on[service] += " " + networks
		}
		for service, networks := range on {
			c := container{}
			c.State.Running = service != "seed"
			c.Config.Labels = map[string]string{labelService: service}
			c.NetworkSettings.Networks = map[string]json.RawMessage{}
			for name := range strings.FieldsSeq(networks) {
				c.NetworkSettings.Networks["shop_"+name] = nil
			}
			out = append(out, c)
		}
		return out
	}
	for _, tc := range []struct {
		extra map[string]string
		want  string
	}{
		{nil, ""},
		{map[string]string{"c3-redis": "c1"}, "c3-redis is on the network c1"},
		{map[string]string{"c1-gateway": "c3 backbone"}, "c1-gateway is on the network backbone; c1-gateway is on the network c3"},
		{map[string]string{"c1-agent": "global"}, "c1-agent is on the network global"},
		{map[string]string{"edge": "c1"}, "edge is on the network c1"},
	} {
		seen, foreign := border("shop", all(tc.extra))
		if got := strings.Join(foreign, "; "); got != tc.want || seen != 9 {
			t.Errorf("%v: %d as they should be, foreign %q; want 9, %q", tc.extra, seen, got, tc.want)
		}
	}
}

func TestVariablesFollowThePortBase(t *testing.T) {
	t.Parallel()
	got := string((&Options{Cells: 5, PortBase: 8080}).variables())
	for _, want := range []string{
		"CELLMART_PORT_BASE=8080\n", "CELLMART_PORT_CONSOLE=8090\n", "CELLMART_PORT_C1=8101\n", "CELLMART_PORT_C5=8105\n", "CELLMART_PORT_GLOBAL_AGENT=8184\n",
		"CELLMART_PORT_C1_AGENT=8214\n", "CELLMART_CELLS=c1,c2,c3,c4,c5\n", "c5=c5-agent:8104,global=global-agent:8104\n", "c5:north:100\n", "c5=http://127.0.0.1:8105\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	for _, cells := range []int{1, 9} {
		if err := (&Options{Root: root, Cells: cells}).defaults(); err == nil {
			t.Errorf("%d cells were accepted", cells)
		}
	}
	if err := (&Options{Root: root, Cells: 5, Split: true}).defaults(); err == nil {
		t.Error("five cells were accepted with --split")
	}
}
