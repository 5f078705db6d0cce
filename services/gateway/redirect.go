package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"example.com/cellmart/platform/routing"
)

// paramHop marks a request that another gateway has redirected: the client brings
// it along in the query, since it would bring no header of ours. Whoever finds it
// forwards and doesn't redirect again, so gateways that disagree about a slot send
// nobody round in circles. A client that sets it by itself only gets forwarded.
const paramHop = "cellmart-hop"

// redirects is where people find other cells' gateways; nil is: always forward.
type redirects map[string]string // cell -> http://host:port

// parsePublic reads c1=http://host:port,...
func parsePublic(list []string) (redirects, error) {
	out := redirects{}
	for _, text := range list {
		cell, base, ok := strings.Cut(text, "=")
		u, err := url.Parse(base)
		if !ok || err != nil || !routing.ValidName(cell) || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			return nil, fmt.Errorf("has %q, not cell=http://host:port", text)
		}
		out[cell] = u.Scheme + "://" + u.Host
	}
	return out, nil
}

// takeHop takes the mark out of a request and says whether it had one.
func takeHop(r *http.Request) bool {
	if !strings.Contains(r.URL.RawQuery, paramHop) {
		return false
	}
	var rest []string
	marked := false
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if name, _, _ := strings.Cut(pair, "="); name == paramHop {
			marked = true
			continue
		}
		rest = append(rest, pair)
	}
	r.URL.RawQuery = strings.Join(rest, "&")
	return marked
}

// elsewhere gives the address of the gateway that the client should ask instead,
// empty for none. Status 307 makes the client keep method and body.
func (g *Gateway) elsewhere(j job, u *url.URL) string {
	base, known := g.redirects[j.at.cell]
	if !known || j.at.cell == g.cell || j.from.hopped || j.redirected || j.global() || j.rule.slot == ofNew {
		return ""
	}
	query := paramHop + "=1"
	if u.RawQuery != "" {
		query = u.RawQuery + "&" + query
	}
	return base + u.EscapedPath() + "?" + query
}
