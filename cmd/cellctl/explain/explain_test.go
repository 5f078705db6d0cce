package explain

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

func numbers(t testing.TB) *id.Numbers {
	t.Helper()
	n, err := id.NewNumbers([]byte("a key that is long enough for this"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// tableOf has two cells; with moved, those users live in private slots of c2.
func tableOf(t testing.TB, version int64, moved ...id.ID) *routing.Table {
	t.Helper()
	spec := routing.Spread([]string{"c1", "c2"}).Spec()
	spec.Version = version
	for i, u := range moved {
		p := routing.FirstUserSlot + routing.Slot(i)
		spec.Overrides[int64(u)], spec.Private[p] = p, routing.Assignment{Owner: "c2", Standby: "c1", Epoch: 3}
	}
	table, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestParse(t *testing.T) {
	n := numbers(t)
	some := id.Make(123_456, 77, false)
	for text, want := range map[string]Input{
		some.String():                   {Kind: KindID, ID: some, Slot: 77},
		n.Encode(some):                  {Kind: KindNumber, ID: some, Slot: 77},
		strings.ToLower(n.Encode(some)): {Kind: KindNumber, ID: some, Slot: 77},
		"+86 138-0000-0001":             {Kind: KindPhone, Slot: routing.HashSlot("8613800000001")},
		"008613800000001":               {Kind: KindPhone, Slot: routing.HashSlot("8613800000001")},
	} {
		want.Text = text
		got, err := Parse(text, n)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", text, got, err, want)
		}
	}
	wrong := []byte(n.Encode(some))
	wrong[0] = 'Z'
	for _, text := range []string{"", "x", "-5", "9223372036854775808", "+1", "+86x", string(wrong), "1e9", strings.Repeat("9", 5000)} {
		var bad cellkit.Usage
		if in, err := Parse(text, n); !errors.As(err, &bad) {
			t.Errorf("Parse(%.40q) = %+v, %v, want a usage error", text, in, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	n := numbers(f)
	f.Add("+8613800000001")
	f.Add(n.Encode(id.Make(9, 9, true)))
	f.Add("81985529216486895")
	table := tableOf(f, 1)
	f.Fuzz(func(t *testing.T, text string) {
		in, err := Parse(text, n)
		if err != nil {
			return
		}
		if in.Slot < 0 || in.Slot >= routing.Slots || in.Kind == "" || in.Kind != KindPhone && in.ID.Slot() != in.Slot {
			t.Fatalf("%q is read as %+v", text, in)
		}
		d, err := Decide(in, []Level{{Level: Agent, From: "c1", Version: 1, Table: table}})
		if want, _ := table.Slot(in.Slot); err != nil || d.Owner != want.Owner {
			t.Fatalf("%q: %+v, %v", text, d, err)
		}
	})
}

func TestDecide(t *testing.T) {
	user := id.Make(5, 100, false)
	other := id.Make(6, 100, false)
	table := tableOf(t, 7, user)
	seven := int64(7000)
	levels := []Level{
		{Level: Control, From: "global", Error: "is away"},
		{Level: Agent, From: "c1", Version: 6, Table: tableOf(t, 6)},
		{Level: Agent, From: "c2", Version: 7, Table: table, AgeMS: &seven},
		{Level: Redis, From: "c1", Version: 7, Table: table},
	}
	owner, _ := table.Slot(100)
	hash := Place{Slot: 100, Owner: owner.Owner, Epoch: 1}
	private := Place{Slot: routing.FirstUserSlot, Owner: "c2", Epoch: 3, Standby: "c1"}
	for _, tc := range []struct {
		name string
		in   Input
		want Decision
	}{
		{"a user who was moved alone", Input{"u", KindID, user, 100}, Decision{Kind: KindID, ID: user, Override: true, Place: private, Also: []Place{}}},
		{"another thing of that slot", Input{"o", KindID, other, 100}, Decision{Kind: KindID, ID: other, Place: hash, Also: []Place{private}}},
		{"an order number is never a user", Input{"n", KindNumber, user, 100}, Decision{Kind: KindNumber, ID: user, Place: hash, Also: []Place{private}}},
		{"a phone", Input{"p", KindPhone, 0, 100}, Decision{Kind: KindPhone, Place: hash, Also: []Place{}}},
	} {
		tc.want.Asked, tc.want.HashSlot, tc.want.Table, tc.want.From, tc.want.Level, tc.want.AgeMS = tc.in.Text, 100, 7, "c2", Agent, &seven
		got, err := Decide(tc.in, levels)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		got.Asks = nil
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s (-want +got)\n%s", tc.name, d)
		}
	}
	d, err := Decide(Input{"u", KindID, user, 100}, levels)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	d.Write(&out)
	for _, want := range []string{"moved alone, to private slot 17408", "belongs to c2 at epoch 3 (standby: c1)", "by table 7, from the agent of c2, the newest as of 7s ago", "no table: is away", "table 7, an unknown age"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if _, err := Decide(Input{"u", KindID, user, 100}, levels[:1]); err == nil || !strings.Contains(err.Error(), "control of global: is away") {
		t.Errorf("without any table: %v", err)
	}
}

// Each level answers when those above are dead, and what isn't signed by control
// counts as none.
func TestLevelsAnswerOneForAnother(t *testing.T) {
	key, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signed := func(k ed25519.PrivateKey, v int64) []byte { return routing.Sign(k, tableOf(t, v)).Bytes() }
	serve := func(table []byte, status any) (url string, kill func()) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/status") {
				_ = json.NewEncoder(w).Encode(status)
				return
			}
			_, _ = w.Write(table)
		}))
		t.Cleanup(s.Close)
		return s.URL, s.Close
	}
	dead := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	dir := t.TempDir()
	if err := route.WriteSnapshot(dir, signed(priv, 4)); err != nil {
		t.Fatal(err)
	}
	control, killControl := serve(signed(priv, 5), nil)
	agent, killAgent := serve(signed(priv, 5), agentapi.Status{ControlAgeMS: 1234})
	liar, _ := serve(signed(stranger, 9), agentapi.Status{})
	s := Sources{
		Key: key, Control: &controlapi.Client{BaseURL: control, Key: key}, Redis: map[string]string{"c1": dead()},
		Agents:    map[string]*agentapi.Client{"c1": {BaseURL: agent, Key: key}, "c2": {BaseURL: liar, Key: key}},
		Snapshots: map[string]string{"c1": dir, "c2": t.TempDir()},
	}
	in := Input{Text: "x", Kind: KindID, ID: id.Make(1, 1, false), Slot: 1}
	want := func(level string, version int64, age func(*int64) bool) {
		t.Helper()
		d, err := Decide(in, s.Ask(t.Context()))
		if err != nil || d.Level != level || d.Table != version || d.From == "c2" || !age(d.AgeMS) {
			t.Errorf("%s of %s says table %d, age %v, %v; want %s, %d", d.Level, d.From, d.Table, d.AgeMS, err, level, version)
		}
		if len(d.Asks) != 6 {
			t.Errorf("%d levels are shown, want all 6", len(d.Asks))
		}
	}
	want(Control, 5, func(ms *int64) bool { return ms != nil && *ms == 0 })
	killControl()
	want(Agent, 5, func(ms *int64) bool { return ms != nil && *ms == 1234 })
	killAgent()
	want(Snapshot, 4, func(ms *int64) bool { return ms != nil })
}
