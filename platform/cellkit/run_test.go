package cellkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/env"
)

func TestMain_ExitCodes(t *testing.T) {
	t.Parallel()
	ends := func(err error) func(context.Context, Process) error {
		return func(context.Context, Process) error { return err }
	}
	components := []Component{
		{Name: "fine", Doc: "ends well", Run: ends(nil), Vars: func() []env.Var {
			r := env.NewReader("FINE", func(string) string { return "" })
			r.Required("PG_DSN", "the database")
			return r.Vars()
		}},
		{Name: "stopped", Run: ends(fmt.Errorf("wait: %w", context.Canceled))},
		{Name: "broken", Run: ends(errors.New("disk full"))},
		{Name: "misread", Run: ends(fmt.Errorf("config: %w", Usage{errors.Join(errors.New("X_A is not set"), errors.New("X_B is not set"))}))},
		{Name: "waits", Run: func(ctx context.Context, _ Process) error { <-ctx.Done(); return nil }},
		{Name: "once", Doc: "runs alone", Once: true, Run: func(_ context.Context, p Process) error {
			fmt.Fprint(p.Stdout, strings.Join(p.Args, "+"))
			return nil
		}},
		{Name: "oncebad", Once: true, Run: ends(Usage{errors.New("needs a FILE")})},
	}
	for _, tc := range []struct {
		name     string
		args     string
		env      map[string]string
		want     int
		out, err string // parts of stdout and stderr; "" = must be empty
	}{
		{"nothing asked: help", "", nil, 0, "once", ""},
		{"help", "help", nil, 0, "runs alone", ""},
		{"help of one", "help fine", nil, 0, "FINE_PG_DSN", ""},
		{"help without variables", "help once", nil, 0, "runs alone", ""},
		{"help of nobody", "help nobody", nil, 2, "", `"nobody"`},
		{"unknown service", "nobody", nil, 2, "", `"nobody"`},
		{"unknown beside a known", "waits nobody", nil, 2, "", `"nobody"`},
		{"a good end", "fine", nil, 0, "", ""},
		{"two", "fine stopped", nil, 0, "", ""},
		{"told to stop", "stopped", nil, 0, "", ""},
		{"failure", "broken", nil, 1, "", "disk full"},
		{"one failure stops the others", "waits broken", nil, 1, "", "broken: disk full"},
		{"bad settings", "misread", nil, 2, "", "X_A is not set; X_B is not set"},
		{"bad settings stop the others", "waits misread", nil, 2, "", "X_A is not set; X_B"},
		{"a command gets its words", "once a b", nil, 0, "a+b", ""},
		{"a command stands alone", "fine once", nil, 2, "", "stands alone"},
		{"a command's usage", "oncebad", nil, 2, "", "needs a FILE"},
		{"bad log level", "fine", map[string]string{"LOG_LEVEL": "loud"}, 2, "", "LOG_LEVEL"},
		{"log level", "fine", map[string]string{"LOG_LEVEL": "debug"}, 0, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out, err bytes.Buffer
			got := Main(strings.Fields(tc.args), func(n string) string { return tc.env[n] }, &out, &err, components...)
			if got != tc.want {
				t.Errorf("exit code %d, want %d (%s)", got, tc.want, err.String())
			}
			for part, text := range map[*bytes.Buffer]string{&out: tc.out, &err: tc.err} {
				if text == "" && part.Len() > 0 || !strings.Contains(part.String(), text) {
					t.Errorf("printed %q, want %q", part.String(), text)
				}
			}
			if tc.want == 2 && strings.Count(err.String(), "\n") != 1 {
				t.Errorf("bad input took more than one line: %q", err.String())
			}
		})
	}
}
