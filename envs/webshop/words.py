"""The words of generated catalogues: product types, their attributes and options, brands, and what is said about them.

Closed on purpose: small models know these words and no others. Option values and attributes are letters and blanks
only, no value is similar to another one (WebShop's reward would mix them up; a test checks every pair), and no
word of a frame is an option value.
"""

from __future__ import annotations

from dataclasses import dataclass

_CLOTHES = "Clothing, Shoes & Jewelry"
_BEAUTY = "Beauty & Personal Care"
_HOME = "Home & Kitchen"
_FOOD = "Grocery & Gourmet Food"


@dataclass(frozen=True, slots=True)
class Kind:
    """A product type. query: also how titles and instructions call it; options: names of option pools;
    price: middle of its prices in dollars."""

    category: str
    query: str
    type_path: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price: float


def _kind(category: str, query: str, path: str, attributes: str, options: str, price: float) -> Kind:
    return Kind(category, query, path, tuple(attributes.split(", ")), tuple(options.split()), price)


KINDS = (
    _kind(
        "fashion",
        "running shoes",
        f"{_CLOTHES} › Men › Shoes › Athletic › Running",
        "arch support, memory foam, rubber sole, non slip, breathable mesh, light weight, reflective strips, roomy toe",
        "color width",
        55,
    ),
    _kind(
        "fashion",
        "summer dress",
        f"{_CLOTHES} › Women › Clothing › Dresses › Casual",
        "machine washable, short sleeve, elastic waist, loose fit, floral print, side pockets, v neck, soft lining",
        "color size",
        34,
    ),
    _kind(
        "fashion",
        "polo shirt",
        f"{_CLOTHES} › Men › Clothing › Shirts › Polos",
        "slim fit, relaxed fit, moisture wicking, machine washable, button closure, stretch cotton, wrinkle free, long sleeve",
        "color size",
        26,
    ),
    _kind(
        "fashion",
        "leather sandals",
        f"{_CLOTHES} › Women › Shoes › Sandals › Flats",
        "open toe, ankle strap, arch support, non slip, hand stitched, memory foam, flat heel, buckle closure",
        "color width",
        41,
    ),
    _kind(
        "fashion",
        "wool sweater",
        f"{_CLOTHES} › Women › Clothing › Sweaters › Pullovers",
        "hand wash, crew neck, cable knit, long sleeve, loose fit, ribbed cuffs, turtle neck, soft lining",
        "color size",
        48,
    ),
    _kind(
        "beauty",
        "face serum",
        f"{_BEAUTY} › Skin Care › Face › Serums",
        "cruelty free, paraben free, anti aging, fragrance free, oil free, fine lines, sensitive skin, dry skin",
        "scent bottle",
        22,
    ),
    _kind(
        "beauty",
        "body lotion",
        f"{_BEAUTY} › Skin Care › Body › Moisturizers",
        "cruelty free, sulfate free, dermatologist tested, shea butter, dry skin, sensitive skin, fast absorbing, plant based",
        "scent bottle",
        15,
    ),
    _kind(
        "beauty",
        "lip balm",
        f"{_BEAUTY} › Makeup › Lips › Lip Balms",
        "long lasting, paraben free, sun protection, bees wax, plant based, high shine, cracked lips, dermatologist tested",
        "flavor pack",
        9,
    ),
    _kind(
        "beauty",
        "hair mask",
        f"{_BEAUTY} › Hair Care › Deep Conditioners",
        "damaged hair, sulfate free, argan oil, heat protection, curly hair, cruelty free, shea butter, color safe",
        "scent bottle",
        18,
    ),
    _kind(
        "beauty",
        "electric toothbrush",
        f"{_BEAUTY} › Oral Care › Toothbrushes › Electric",
        "sensitive gums, travel case, pressure sensor, fast charging, long battery, soft bristles, quiet motor, water proof",
        "color style",
        52,
    ),
    _kind(
        "electronics",
        "wireless headphones",
        "Electronics › Headphones › Over Ear",
        "noise cancelling, hands free, fast charging, stereo sound, foldable design, sweat proof, long battery, travel case",
        "color style",
        64,
    ),
    _kind(
        "electronics",
        "bluetooth speaker",
        "Electronics › Portable Audio › Bluetooth Speakers",
        "water proof, stereo sound, deep bass, long battery, hands free, dust proof, voice control, shock proof",
        "color style",
        46,
    ),
    _kind(
        "electronics",
        "charging cable",
        "Electronics › Accessories & Supplies › Cables › USB",
        "fast charging, gold plated, nylon braided, tangle free, high speed, data transfer, heavy duty, plug play",
        "color length",
        12,
    ),
    _kind(
        "electronics",
        "phone case",
        "Electronics › Cell Phones › Cases › Basic Cases",
        "shock proof, dust proof, wireless charging, card holder, non slip, scratch resistant, slim profile, kick stand",
        "color finish",
        17,
    ),
    _kind(
        "electronics",
        "smart watch",
        "Electronics › Wearable Technology › Smart Watches",
        "heart rate, sleep tracking, water proof, long battery, voice control, quick release, step counter, scratch resistant",
        "color width",
        78,
    ),
    _kind(
        "garden",
        "table lamp",
        "Tools & Home Improvement › Lighting › Lamps › Table Lamps",
        "glass shade, easy assemble, energy saving, touch control, living room, reading light, solid wood, usb port",
        "finish style",
        44,
    ),
    _kind(
        "garden",
        "window curtains",
        f"{_HOME} › Home Décor › Window Treatments › Curtains",
        "machine washable, noise reducing, heat blocking, living room, dining room, super soft, easy install, wrinkle free",
        "color length",
        31,
    ),
    _kind(
        "garden",
        "throw pillow",
        f"{_HOME} › Bedding › Decorative Pillows",
        "super soft, machine washable, double sided, hidden zipper, living room, memory foam, hand stitched, faux fur",
        "color shape",
        21,
    ),
    _kind(
        "garden",
        "storage bench",
        f"{_HOME} › Furniture › Bedroom › Benches",
        "solid wood, faux leather, easy assemble, space saving, heavy duty, living room, dining room, steel frame",
        "color finish",
        92,
    ),
    _kind(
        "garden",
        "area rug",
        f"{_HOME} › Floor Coverings › Area Rugs",
        "non slip, machine washable, easy clean, stain resistant, super soft, living room, dining room, low pile",
        "color shape",
        58,
    ),
    _kind(
        "grocery",
        "trail mix",
        f"{_FOOD} › Snack Foods › Nuts & Seeds › Trail Mix",
        "gluten free, non gmo, low sodium, high protein, dairy free, real fruit, sugar free, individually wrapped",
        "flavor pack",
        14,
    ),
    _kind(
        "grocery",
        "ground coffee",
        f"{_FOOD} › Beverages › Coffee › Ground",
        "fair trade, low acid, usda organic, medium roast, caffeine free, small batch, mountain grown, bold taste",
        "flavor pack",
        16,
    ),
    _kind(
        "grocery",
        "protein bar",
        f"{_FOOD} › Breakfast Foods › Protein Bars",
        "gluten free, keto friendly, low sugar, high fiber, soy free, plant based, individually wrapped, dairy free",
        "flavor pack",
        24,
    ),
    _kind(
        "grocery",
        "green tea",
        f"{_FOOD} › Beverages › Tea › Green",
        "usda organic, caffeine free, loose leaf, fair trade, low calorie, hand picked, non gmo, kosher certified",
        "flavor pack",
        13,
    ),
    _kind(
        "grocery",
        "fruit jam",
        f"{_FOOD} › Jams & Spreads › Jams",
        "sugar free, real fruit, small batch, low calorie, usda organic, non gmo, kosher certified, gluten free",
        "flavor pack",
        11,
    ),
)

CATEGORIES = tuple(dict.fromkeys(kind.category for kind in KINDS))

# option name -> values that products choose from
OPTIONS = {
    "color": tuple("black white navy red gray pink beige teal ivory olive purple orange".split()),
    "size": tuple("petite small medium large".split()),
    "width": tuple("narrow regular wide".split()),
    "scent": tuple("lavender vanilla citrus unscented jasmine coconut".split()),
    "bottle": tuple("mini family refill".split()),
    "flavor": tuple("original caramel hazelnut cinnamon mango honey cherry ginger".split()),
    "pack": tuple("single double bulk".split()),
    "style": tuple("classic modern vintage sporty".split()),
    "length": tuple("short middle long".split()),
    "finish": tuple("matte glossy brushed walnut".split()),
    "shape": tuple("round square oval".split()),
}

BRANDS = tuple(
    """norvik alderan brisa calyx dovena elmore fennec gavotte halden ilvora jorvik kestra lumeno marlow nebula orlin
    pavane quillo rivena solace tamsin ulmeda veldt wexley yarrow zephyr corvane mirelle bastion drayton""".split()
)

# what titles and descriptions say besides
USES = {
    "fashion": ("daily wear", "weekend trips", "office days"),
    "beauty": ("morning care", "evening care", "travel bags"),
    "electronics": ("daily commute", "home office", "gym sessions"),
    "garden": ("cozy bedroom", "guest room", "home office"),
    "grocery": ("lunch boxes", "morning breaks", "road trips"),
}
PRAISE = ("made with care", "loved by our customers", "built to last", "simple and honest", "a gift that pleases")

# {what}: attributes and product type. Synthetic instructions are followed by the options and the price bound.
SYNTHETIC_FRAMES = (
    "Find me {what}",
    "I want {what}",
    "i need {what}",
    "please buy {what}",
    "show me {what}",
    "i am looking for {what}",
)
# {options}: the values wanted, joined by commas.
HUMAN_FRAMES = (
    "i would love {what}, {options} please.",
    "looking for {what} and it should be {options}",
    "my friend asked for {what} in {options}",
    "can you get me {what}? i prefer {options}",
)
