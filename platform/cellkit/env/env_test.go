package env

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func from(m map[string]string) func(string) string {
	return func(name string) string { return m[name] }
}

func TestLookUpOrder(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"the service's own name wins", map[string]string{"ORDER_ADDR": "own", "ADDR": "shared"}, "own"},
		{"then the shared one", map[string]string{"ADDR": "shared"}, "shared"},
		{"then the default", nil, "default"},
		{"empty is not set", map[string]string{"ORDER_ADDR": "", "ADDR": ""}, "default"},
		{"another service's is not read", map[string]string{"USER_ADDR": "user"}, "default"},
	} {
		r := NewReader("ORDER", from(tc.env))
		if got := r.String("ADDR", "default", "where"); got != tc.want || r.Err() != nil {
			t.Errorf("%s: String = %q, %v, want %q", tc.name, got, r.Err(), tc.want)
		}
	}
}

func TestValueFromFile(t *testing.T) {
	t.Parallel()
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own, shared := file("own\n"), file(" shared\r\n")
	for _, tc := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"the service's own file wins", map[string]string{"ORDER_KEY_FILE": own, "KEY_FILE": shared}, "own"},
		{"only the line's end is dropped", map[string]string{"KEY_FILE": shared}, " shared"},
		{"a value wins over a file", map[string]string{"KEY": "value", "ORDER_KEY_FILE": own}, "value"},
	} {
		r := NewReader("ORDER", from(tc.env))
		if got := r.Secret("KEY", "secret"); got.Reveal() != tc.want || r.Err() != nil {
			t.Errorf("%s: Secret = %q, %v, want %q", tc.name, got.Reveal(), r.Err(), tc.want)
		}
	}
	r := NewReader("ORDER", from(map[string]string{"KEY_FILE": filepath.Join(t.TempDir(), "none")}))
	r.OptionalSecret("KEY", "secret")
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "KEY_FILE") {
		t.Errorf("a file that isn't there: %v, want a mistake that names KEY_FILE", err)
	}
}

func TestTypes(t *testing.T) {
	t.Parallel()
	r := NewReader("X", from(map[string]string{"N": "-3", "B": "true", "D": "300ms", "L": " a, ,b,", "S": "hunter2"}))
	if got := r.Int("N", 1, ""); got != -3 {
		t.Errorf("Int = %d", got)
	}
	if !r.Bool("B", false, "") {
		t.Error("Bool = false")
	}
	if got := r.Duration("D", time.Second, ""); got != 300*time.Millisecond {
		t.Errorf("Duration = %v", got)
	}
	if got := r.List("L", "", ""); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("List = %q", got)
	}
	if got := r.Secret("S", ""); got.Reveal() != "hunter2" {
		t.Errorf("Secret = %q", got.Reveal())
	}
	if r.Int("N2", 7, "") != 7 || r.Bool("B2", true, "") != true || r.Duration("D2", time.Minute, "") != time.Minute || r.List("L2", "x,y", "")[1] != "y" || r.OptionalSecret("S2", "") != "" {
		t.Error("a default is wrong")
	}
	if err := r.Err(); err != nil {
		t.Errorf("Err = %v, want nil", err)
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	r := NewReader("X", from(map[string]string{"N": "1.5", "B": "yes please", "D": "10", "D2": "-1s"}))
	r.Int("N", 1, "")
	r.Bool("B", false, "")
	r.Duration("D", 0, "")
	r.Duration("D2", 0, "")
	r.Required("DSN", "the database")
	r.Secret("KEY", "the key")
	r.Fail("ADDR", "is the same as INTERNAL_ADDR")
	err := r.Err()
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{"X_N ", "X_B ", "X_D ", "X_D2 ", "X_DSN ", "the database", "X_KEY ", "X_ADDR "} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q isn't told in:\n%v", name, err)
		}
	}
}

func TestSecretsDontPrint(t *testing.T) {
	t.Parallel()
	r := NewReader("X", from(map[string]string{"KEY": "hunter2"}))
	s := r.Secret("KEY", "the key")
	var out bytes.Buffer
	WriteUsage(&out, r.Vars())
	fmt.Fprintf(&out, "%v %s %q %+v %v", s, s, s, struct{ S Secret }{s}, r.Vars())
	if strings.Contains(out.String(), "hunter2") {
		t.Errorf("a secret printed:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "X_KEY") || !strings.Contains(out.String(), "(required)") || !strings.Contains(out.String(), "the key") {
		t.Errorf("usage doesn't tell:\n%s", out.String())
	}
	if Secret("").String() != "" {
		t.Error("a secret that isn't set looks set")
	}
}
