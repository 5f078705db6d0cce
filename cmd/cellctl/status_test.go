package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/services/agent/agentapi"
)

func TestStragglers(t *testing.T) {
	t.Parallel()
	behind := int64(12_340)
	s := &agentapi.Status{ListeningMS: 60_000, Route: []agentapi.Process{
		{Process: "agent@h:1", Version: 5},
		{Process: "order@h:2", Version: 4, BehindMS: &behind, AgeMS: 900},
		{Process: "search@h:3", Version: 5, AgeMS: 4900},
		{Process: "user@h:4", Version: 5, AgeMS: 31_000},
	}}
	want := []string{"order@h:2 holds table 4, behind for 12.3s, heard 900ms ago", "user@h:4 is silent: it held table 5 31s ago"}
	if d := cmp.Diff(want, stragglers(s)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	s = &agentapi.Status{ListeningMS: 2100}
	if d := cmp.Diff([]string{"the agent has listened for 2.1s only, processes may be missing"}, stragglers(s)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
