package main

import (
	"strings"
	"testing"

	"example.com/cellmart/services/agent/agentapi"
)

func TestOutputsInStatus(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		s    *agentapi.OutputCommit
		want string
	}{
		{"no cell", nil, ""},
		{"all is well", &agentapi.OutputCommit{Mode: "timed", Held: 9, OldestMS: 1900, Uncovered: &agentapi.Uncovered{AgeMS: 300}}, ""},
		{"not read yet", &agentapi.OutputCommit{Mode: "strict"}, ""},
		{"off", &agentapi.OutputCommit{Mode: "off"}, "outputs don't wait for standbys: AGENT_OUTPUT_COMMIT is off"},
		{"stuck", &agentapi.OutputCommit{Mode: "strict", Held: 7, OldestMS: 65_000}, "7 outputs wait for a standby (strict), the oldest for 1m5s"},
		{"marked", &agentapi.OutputCommit{Mode: "timed", Uncovered: &agentapi.Uncovered{Slots: 12, OldestMS: 3400, AgeMS: 700}},
			"12 slots are marked uncovered, the oldest for 3.4s (seen 700ms ago)"},
		{"nobody knows", &agentapi.OutputCommit{Mode: "timed", Uncovered: &agentapi.Uncovered{Slots: 12, Untold: 5, OldestMS: 3400, AgeMS: 700}},
			"12 slots are marked uncovered, the oldest for 3.4s (seen 700ms ago), control doesn't know of 5"},
	} {
		if got := strings.Join(outputs(x.s), "; "); got != x.want {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}
