package agent

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/link"
)

func TestTargetsAreOpenOnlyToTheirPeers(t *testing.T) {
	peers := map[string]string{"c2": "127.0.0.1:1", "global": "127.0.0.1:2"}
	got, err := allow(map[string]string{"gateway": "a:1", "gateway-public": "a:2", "agent": "a:3", "nats": "a:4", "search": "a:5"}, peers)
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string][]string{
		"gateway":        {link.AgentName("c2")},
		"gateway-public": {link.EdgeName},
		"agent":          {link.AgentName("c2"), link.AgentName("global")},
		"nats":           {link.AgentName("c2"), link.AgentName("global")}, // search pulls from everywhere
		"search":         {link.AgentName("c2")},
	} {
		have := got[target].Allow
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("%s may be opened by %v, want %v", target, have, want)
		}
	}
	if _, err := allow(map[string]string{"postgres": "a:1"}, peers); err == nil {
		t.Error("a target that nobody may open was accepted")
	}
}

func TestBadConfigIsSaidAtOnce(t *testing.T) {
	env := map[string]string{
		"CELL": "c1", "AGENT_PEERS": "c2", "AGENT_TARGETS": "gateway=1.2.3.4:1,gateway=1.2.3.4:2", "ROUTE_KEY": "short",
	}
	_, r := loadConfig(func(k string) string { return env[k] })
	text := r.Err().Error()
	for _, want := range []string{"AGENT_PEERS", "AGENT_TARGETS", "ROUTE_KEY", "PG_DSN", "OPERATOR_KEY", "PKI_DIR"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing is said of %s in %q", want, text)
		}
	}
}

func TestOneListOfPeersServesAllZones(t *testing.T) {
	env := map[string]string{"CELL": "c1", "AGENT_PEERS": "c1=a:1,c2=b:1,global=c:1"}
	c, _ := loadConfig(func(k string) string { return env[k] })
	if want := map[string]string{"c2": "b:1", "global": "c:1"}; !maps.Equal(c.Peers, want) {
		t.Errorf("peers of c1 = %v, want %v", c.Peers, want)
	}
}

func TestTargetsWithSeveralInstances(t *testing.T) {
	t.Parallel()
	got, err := parsePairs([]string{"idgen=a:1|b:2", "nats=[::1]:3"})
	if want := map[string]string{"idgen": "a:1|b:2", "nats": "[::1]:3"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("parsePairs = %v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"idgen=a:1|", "idgen=|a:1", "idgen=a:1|b", "idgen=a:1||b:2", "idgen", "=a:1", "idgen=a:1,b:2"} {
		if got, err := parsePairs([]string{bad}); err == nil {
			t.Errorf("parsePairs(%q) = %v", bad, got)
		}
	}
}
