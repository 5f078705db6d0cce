package main

import (
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/outputcommit"
)

func TestOutputsInStatus(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		s    *outputcommit.Status
		want string
	}{
		{"no cell", nil, ""},
		{"all is well", &outputcommit.Status{Mode: "timed", Held: 9, OldestMS: 1900, Uncovered: &outputcommit.Uncovered{AgeMS: 300}}, ""},
		{"not read yet", &outputcommit.Status{Mode: "strict"}, ""},
		{"off", &outputcommit.Status{Mode: "off"}, "outputs don't wait for standbys: AGENT_OUTPUT_COMMIT is off"},
		{"stuck", &outputcommit.Status{Mode: "strict", Held: 7, OldestMS: 65_000}, "7 outputs wait for a standby (strict), the oldest for 1m5s"},
		{"marked", &outputcommit.Status{Mode: "timed", Uncovered: &outputcommit.Uncovered{Slots: 12, OldestMS: 3400, AgeMS: 700}},
			"12 slots are marked uncovered, the oldest for 3.4s (seen 700ms ago)"},
		{"nobody knows", &outputcommit.Status{Mode: "timed", Uncovered: &outputcommit.Uncovered{Slots: 12, Untold: 5, OldestMS: 3400, AgeMS: 700}},
			"12 slots are marked uncovered, the oldest for 3.4s (seen 700ms ago), control doesn't know of 5"},
	} {
		if got := strings.Join(outputs(x.s), "; "); got != x.want {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}
