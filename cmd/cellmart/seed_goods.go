package main

import (
	"fmt"

	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/user/userapi"
)

// shop is one seller of the demo and what it sells.
type shop struct {
	name, owner, brand string
	shelves            []shelf
}

// shelf is a category with words to make titles of.
type shelf struct {
	category  string
	qualities []string
	goods     []good
	sizes     [2]string // of the products with two SKUs
	step      int64     // percent that the second costs more
}

// good is a thing and its middle price in yuan.
type good struct {
	noun string
	yuan int64
}

func shops() []shop {
	s := shelves()
	one := func(name, owner, brand string, categories ...string) shop {
		out := shop{name: name, owner: owner, brand: brand}
		for _, c := range categories {
			out.shelves = append(out.shelves, s[c])
		}
		return out
	}
	return []shop{
		one("Harbor Light Audio", "Chen Wei", "Harbor", "electronics"),
		one("Bamboo Home", "Lin Mei", "Bamboo House", "home"),
		one("Silk Road Outfitters", "Wang Fang", "Silk Road", "fashion"),
		one("Morning Dew Care", "Zhao Li", "Morning Dew", "beauty"),
		one("Trail and Summit", "Liu Yang", "Summit", "sports"),
		one("Little Panda Toys", "Huang Jing", "Little Panda", "toys"),
		one("Ink and Paper", "Zhou Min", "Inkstone", "books"),
		one("Cloud Tea House", "Wu Hao", "Cloud Mountain", "food"),
		one("Pixel Corner", "Xu Ting", "Pixel", "electronics", "toys"),
		one("Copper Kettle Kitchen", "Sun Qiang", "Copper Kettle", "home", "food"),
		one("Northwind Sportswear", "Ma Lan", "Northwind", "sports", "fashion"),
		one("Lotus Study", "Gao Rui", "Lotus", "books", "beauty"),
	}
}

func shelves() map[string]shelf {
	list := []shelf{
		{"electronics", []string{"compact", "wireless", "quiet", "pocket", "studio", "foldable", "everyday"}, []good{
			{"headphones", 299}, {"keyboard", 259}, {"desk lamp", 139}, {"phone stand", 39}, {"power bank", 129},
			{"speaker", 219}, {"mouse", 89}, {"charging cable", 29}, {"alarm clock", 79},
		}, [2]string{"black", "white"}, 0},
		{"home", []string{"stoneware", "linen", "oak", "brass", "enamel", "cotton", "cork"}, []good{
			{"tea tray", 119}, {"storage box", 59}, {"table runner", 69}, {"vase", 99}, {"candle holder", 49},
			{"serving bowl", 89}, {"bath mat", 79}, {"wall hook", 25}, {"cushion", 109},
		}, [2]string{"small", "large"}, 40},
		{"fashion", []string{"merino", "washed cotton", "light", "quilted", "striped", "classic", "soft"}, []good{
			{"scarf", 129}, {"shirt", 189}, {"jacket", 399}, {"socks", 29}, {"cap", 79},
			{"sweater", 269}, {"trousers", 239}, {"gloves", 69}, {"tote bag", 99},
		}, [2]string{"M", "L"}, 0},
		{"beauty", []string{"rose", "aloe", "green tea", "camellia", "honey", "rice", "jasmine"}, []good{
			{"hand cream", 39}, {"soap", 19}, {"shampoo", 59}, {"face mask", 45}, {"lip balm", 25},
			{"body lotion", 69}, {"bath salt", 49}, {"hair oil", 89}, {"face cleanser", 65},
		}, [2]string{"50 ml", "100 ml"}, 60},
		{"sports", []string{"trail", "ultralight", "training", "all-weather", "city", "alpine", "starter"}, []good{
			{"backpack", 349}, {"water bottle", 69}, {"yoga mat", 129}, {"head torch", 99}, {"jump rope", 35},
			{"running belt", 59}, {"sleeping bag", 429}, {"trekking poles", 279}, {"towel", 49},
		}, [2]string{"blue", "orange"}, 0},
		{"toys", []string{"wooden", "magnetic", "plush", "painted", "giant", "travel", "first"}, []good{
			{"puzzle", 59}, {"building blocks", 149}, {"panda", 79}, {"train set", 239}, {"kite", 45},
			{"board game", 129}, {"spinning top", 15}, {"memory game", 39}, {"marble run", 189},
		}, [2]string{"for 3 years and up", "for 6 years and up"}, 20},
		{"books", []string{"illustrated", "hardcover", "pocket", "annotated", "dotted", "leather-bound", "recycled"}, []good{
			{"notebook", 35}, {"city guide", 69}, {"cookbook", 98}, {"sketchbook", 49}, {"fountain pen", 159},
			{"calendar", 42}, {"poetry collection", 56}, {"brush set", 88}, {"letter paper", 28},
		}, [2]string{"plain", "gift box"}, 30},
		{"food", []string{"spring", "roasted", "mountain", "aged", "wild", "organic", "hand-picked"}, []good{
			{"green tea", 88}, {"oolong tea", 118}, {"walnuts", 49}, {"honey", 65}, {"dried mushrooms", 58},
			{"rice noodles", 18}, {"sesame oil", 36}, {"goji berries", 42}, {"chilli sauce", 15},
		}, [2]string{"250 g", "500 g"}, 80},
	}
	out := make(map[string]shelf, len(list))
	for _, s := range list {
		out[s.category] = s
	}
	return out
}

// product gives the shop's nth product: the same one in every run, no two alike.
func (s shop) product(n int) catalogapi.NewProduct {
	shelf := s.shelves[n%len(s.shelves)]
	k := n / len(s.shelves)
	thing := shelf.goods[k%len(shelf.goods)]
	// Round by round over the things, another quality in each round.
	quality := shelf.qualities[(k/len(shelf.goods)+k+len(s.name))%len(shelf.qualities)]
	price := thing.yuan * 100 * (80 + spread(s.name, n, 41)) / 100
	price = min(max(price/50*50, 500), 50_000)
	p := catalogapi.NewProduct{
		Title:       fmt.Sprintf("%s %s %s", s.brand, quality, thing.noun),
		Description: fmt.Sprintf("From %s: %s %s, made in small batches.\n%s", s.name, quality, thing.noun, promise(s.name, n)),
		Category:    shelf.category,
		SKUs:        []catalogapi.NewVariant{{Price: price, Currency: "CNY"}},
	}
	if n%2 == 1 {
		p.SKUs[0].Title = shelf.sizes[0]
		second := min(price*(100+shelf.step)/100/50*50, 50_000)
		p.SKUs = append(p.SKUs, catalogapi.NewVariant{Title: shelf.sizes[1], Price: second, Currency: "CNY"})
	}
	return p
}

// units of a product's ith SKU, 50 to 500.
func (s shop) units(n, i int) int64 { return 50 + spread(s.name, 1000+2*n+i, 451) }

func promise(name string, n int) string {
	all := []string{
		"Ships within two days.", "Thirty days to change your mind.", "Wrapped without plastic.",
		"With a two-year warranty.", "A favourite of returning customers.",
	}
	return all[spread(name, 2000+n, int64(len(all)))]
}

// spread is a number from 0 to below limit that looks random and is the same in
// every run and with every version of Go: FNV-1a.
func spread(name string, n int, limit int64) int64 {
	h := uint32(2166136261)
	for _, b := range fmt.Appendf(nil, "%s/%d", name, n) {
		h = (h ^ uint32(b)) * 16777619
	}
	h ^= h >> 15
	return int64(h) % limit
}

func shopperNames() []string {
	return []string{"Ann Li", "Bao Zhang", "Cai Yun", "Dong Hua", "En Qi", "Fei Fei", "Guo Jun", "He Xin"}
}

// addressOf is where a shopper's parcels go.
func addressOf(a *account) userapi.AddressRequest {
	cities := []string{"Shanghai", "Chengdu", "Guangzhou", "Xi'an", "Hangzhou", "Wuhan", "Qingdao", "Kunming"}
	streets := []string{"Garden Road", "Lakeside Street", "Old Town Lane", "Station Avenue"}
	return userapi.AddressRequest{
		Recipient: a.name, Phone: a.phone, City: cities[spread(a.name, 1, int64(len(cities)))],
		Line:     fmt.Sprintf("%d %s", 1+spread(a.name, 2, 300), streets[spread(a.name, 3, int64(len(streets)))]),
		Postcode: fmt.Sprintf("%06d", 100_000+spread(a.name, 4, 700_000)),
	}
}
