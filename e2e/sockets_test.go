//go:build e2e

package e2e

import (
	"testing"
)

// All TCP between zones runs through the agents' borders: no process has any other
// connection that leaves its zone (R4).
func TestOnlyAgentsCrossZones(t *testing.T) {
	buyer := register(t, "c1") // some traffic, so that there are connections
	buyer.via = "c2"
	buyer.want(t, 200, "GET", "/wallet", "", nil)
	b, err := sys.Border()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range b.Foreign {
		t.Error(f, "- past the border")
	}
	if b.Inside < 50 || b.Between < 5 {
		t.Errorf("saw only %d connections, %d between zones: the test looks at nothing", b.Inside, b.Between)
	}
}
