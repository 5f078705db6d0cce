package storefront

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// listen opens a page's stream.
func (b *browser) listen(path, last string) (*http.Response, *bufio.Scanner) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.url+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	res, err := b.http.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { res.Body.Close() })
	return res, bufio.NewScanner(res.Body)
}

// next reads to the next change and gives its id; empty at the stream's end.
func next(lines *bufio.Scanner) string {
	for lines.Scan() {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			return id
		}
	}
	return ""
}

// A stream says that a page has changed, ends with what it waited for, and says
// nothing twice.
func TestStreamSaysWhatChanged(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.shop.each = time.Millisecond
	b.logIn()
	order := "GET /api/v1/orders/" + number
	b.api.set(order, answer{status: 200, body: orderJSON("PENDING")})
	res, lines := b.listen("/orders/"+number, "")
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("the stream: %d %v", res.StatusCode, res.Header)
	}
	pending := next(lines)
	b.api.set(order, answer{status: 200, body: orderJSON("RESERVED")})
	reserved := next(lines)
	b.api.set(order, answer{status: 200, body: orderJSON("PAID")})
	paid := next(lines)
	if pending == "" || reserved == "" || paid == "" || pending == reserved || reserved == paid {
		t.Errorf("told of %q, %q, %q", pending, reserved, paid)
	}
	if more := next(lines); more != "" || lines.Err() != nil {
		t.Errorf("after the end: %q, %v", more, lines.Err())
	}
	for last, want := range map[string]int{"": 204, paid: 204, reserved: 200} {
		res, lines := b.listen("/orders/"+number, last)
		if res.StatusCode != want || want == 200 && next(lines) != paid {
			t.Errorf("a stream after %q: %d, want %d", last, res.StatusCode, want)
		}
	}
}

// S-W07: a stream goes on when its server's write timeout is over: each write has a
// time of its own.
func TestScenario_W07_StreamsOutliveTheWriteTimeout(t *testing.T) {
	t.Parallel()
	shop, err := New("c1", nil)
	if err != nil {
		t.Fatal(err)
	}
	shop.each = time.Millisecond
	api := &fakeAPI{t: t, answers: usual()}
	s := httptest.NewUnstartedServer(shop.Handler(api, nil))
	s.Config.WriteTimeout = 500 * time.Millisecond
	s.StartTLS()
	t.Cleanup(s.Close)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/register/88", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	start := time.Now()
	res, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	pending := next(lines)
	<-time.After(time.Until(start.Add(700 * time.Millisecond)))
	api.set("GET /api/v1/operations/88", answer{status: 200, body: `{"id":"88","state":"DONE","user_id":"77"}`})
	if done := next(lines); done == "" || done == pending {
		t.Errorf("after the write timeout: %q, %v", done, lines.Err())
	}
}

// What can't be streamed is answered as its page is; the tab polls then.
func TestStreamsThatCannotBe(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	if res, _ := b.listen("/orders", ""); res.StatusCode != 303 {
		t.Errorf("without a session: %d", res.StatusCode)
	}
	b.logIn()
	for path, want := range map[string]int{"/": 204, "/nowhere": 404, "/orders/" + number: 204, "/orders/other": 404} {
		if res, _ := b.listen(path, ""); res.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, want)
		}
	}
	b.shop.streams.Add(maxStreams)
	if res, _ := b.listen("/transfers/99", ""); res.StatusCode != 503 {
		t.Errorf("one too many: %d", res.StatusCode)
	}
	b.shop.streams.Add(-maxStreams)
	if n := b.shop.streams.Load(); n != 0 {
		t.Errorf("%d streams are left", n)
	}
}

// The page that is kept new stays in its language, whatever another tab chooses,
// and chooses nothing for others.
func TestLivePagesKeepTheirLanguage(t *testing.T) {
	t.Parallel()
	b := visitShop(t)
	b.logIn()
	b.get("/?lang=en").is(t, 200)
	s := b.get("/transfers/99?live=zh-Hans")
	s.is(t, 200, `<html lang="zh-Hans">`, `href="/transfers/99?lang=en"`)
	if got := s.header.Get("Set-Cookie"); got != "" {
		t.Errorf("it sets %s", got)
	}
	b.get("/transfers/99").is(t, 200, `<html lang="en">`)
}
