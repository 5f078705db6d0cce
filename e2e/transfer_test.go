//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"example.com/cellmart/services/agent/agentapi"
)

// A refund across cells, and what an operator can have done to a transfer, with the
// plan shown first. At rest all of it is in the books.
func TestRefundAndOperator(t *testing.T) {
	payer, payee := register(t, "c1"), register(t, "c2")
	payer.deposit(t, 1000)
	send := func(amount int64) string {
		t.Helper()
		return payer.want(t, 202, "POST", "/transfers", fresh("pay"), map[string]any{"to_user": payee.id, "amount": amount}).str("id")
	}
	sent := send(300)
	payer.transfer(t, sent, "SETTLED")
	back := payee.want(t, 202, "POST", "/transfers/"+sent+"/refunds", fresh("back"), map[string]any{"amount": 100, "memo": "too much"})
	payee.transfer(t, back.str("id"), "SETTLED")
	if a := payee.do(t, "POST", "/transfers/"+sent+"/refunds", fresh("back"), map[string]any{"amount": 201}); a.status != 422 || a.code() != "REFUND_LIMIT" {
		t.Errorf("more than is left: %s", a)
	}
	told := payer.do(t, "GET", "/transfers/"+sent, "", nil)
	if told.num("refunded") != 100 || told.str("history.0.state") != "FROZEN" || told.str("history.1.state") != "CREDITED" || told.str("history.3.state") != "REFUND" {
		t.Errorf("history: %s", told)
	}
	job := func(args ...string) (out []struct {
		Cell, Plan string
		agentapi.TransferJob
	}, code int) {
		t.Helper()
		text, code := cellctlOut(t, append([]string{"transfer"}, append(args, "-o", "json")...)...)
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatalf("cellctl transfer %v: %v: %s", args, err, text)
		}
		return out, code
	}
	if out, code := job(sent, "--cancel"); code != 1 || len(out) != 1 || out[0].Cell != "c1" || out[0].State != agentapi.JobFailed {
		t.Errorf("cancel of what has ended: %d, %+v", code, out)
	}
	if text, code := cellctl(t, "transfer", sent, "--retry"); code != 1 || !strings.Contains(text, "nothing to retry") {
		t.Errorf("retry of what has ended: %d, %s", code, text)
	}
	payee.want(t, 201, "POST", "/wallet/withdrawals", fresh("out"), map[string]any{"amount": 150})
	text := mustCellctl(t, "transfer", sent, "--reverse", "--reason", "fraud")
	if !strings.Contains(text, "plan: c2: give back all that is left") || !strings.Contains(text, "DONE") || !strings.Contains(text, "150 of them owed") {
		t.Errorf("reverse: %s", text)
	}
	eventually(t, 30e9, "all is back", func() (bool, string) {
		a := payer.do(t, "GET", "/wallet", "", nil)
		return a.num("balances.0.available") == 1000, a.String()
	})
	if text := mustCellctl(t, "transfer", sent); !strings.Contains(text, "operator: reverse fraud DONE") || !strings.Contains(text, "source: came back 200 CNY") {
		t.Errorf("story: %s", text)
	}
	if text := mustCellctl(t, "transfer", "--parked", "-o", "json"); strings.TrimSpace(text) != "[]" {
		t.Errorf("parked: %s", text)
	}
	atRest(t)
}
