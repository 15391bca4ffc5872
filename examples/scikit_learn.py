"""Two private models through scikit-learn's interface: which of ten digits, and how far a disease goes in a year.

pip install "apportion[data]"
python examples/scikit_learn.py
"""

from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from apportion.sklearn import PrivateClassifier, PrivateRegressor


def classify_digits(epsilon):
    """Pixels are 0 to 16 and digits 0 to 9: both known without looking at a record."""
    train, test, digits, wanted = train_test_split(*load_digits(return_X_y=True), random_state=0)
    classifier = PrivateClassifier(
        epsilon=epsilon, delta=1e-5, population=1300, bounds=(0, 1), classes=range(10), lr=2.0
    )
    pipeline = make_pipeline(FunctionTransformer(lambda pixels: pixels / 16), classifier)  # learns nothing from records
    pipeline.fit(train, digits)
    return pipeline.score(test, wanted), classifier  # the test records are taken to be public


def predict_progression(epsilon):
    """Ten measurements of a patient; the bounds are declared, wide enough for what the data set's description says."""
    train, test, course, wanted = train_test_split(*load_diabetes(return_X_y=True), random_state=0)
    regressor = PrivateRegressor(
        epsilon=epsilon, delta=1e-4, population=330, bounds=(-0.2, 0.2), target_bounds=(25, 350)
    )
    return regressor.fit(train, course).score(test, wanted), regressor


def main():
    for epsilon in (1.0, 3.0):
        accuracy, classifier = classify_digits(epsilon)
        r2, regressor = predict_progression(epsilon)
        spent = f"ε = {classifier.epsilon_:.3f} and {regressor.epsilon_:.3f}"
        print(f"{spent}: {accuracy:.1%} of public digits are told right, R² of the progression {r2:.2f}")


if __name__ == "__main__":
    main()
